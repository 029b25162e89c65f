//! The answers of providers of language models: JSON, and events of streams.

use serde_json::{Value, json};

use super::{Answer, Used};

/// An event without a name.
fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// An event named like the type of its data.
fn named(value: &Value) -> String {
    format!("event: {}\n{}", value["type"].as_str().unwrap(), data(value))
}

/// The answer to one request, in the forms of the providers.
pub(super) struct Reply<'a> {
    pub(super) answer: &'a Answer,
    pub(super) request: &'a Value,
    pub(super) model: &'a Value,
}

impl Reply<'_> {
    pub(super) fn text(&self) -> String {
        self.answer.pieces.concat()
    }

    fn each(&self, event: impl FnMut(&String) -> String) -> Vec<String> {
        self.answer.pieces.iter().map(event).collect()
    }

    pub(super) fn error(&self, path: &str) -> Value {
        if path.ends_with("/messages") {
            json!({ "type": "error", "error": { "type": "api_error", "message": "failed" } })
        } else if path.ends_with("ateContent") {
            json!({ "error": { "code": self.answer.status, "message": "failed", "status": "INTERNAL" } })
        } else {
            json!({ "error": { "message": "failed", "type": "server_error", "param": null, "code": null } })
        }
    }

    fn openai_usage(&self) -> Option<Value> {
        self.answer.usage.map(|Used { input, cached, output }| {
            json!({
                "prompt_tokens": input + cached, "completion_tokens": output, "total_tokens": input + cached + output,
                "prompt_tokens_details": { "cached_tokens": cached },
            })
        })
    }

    pub(super) fn completion(&self, is_chat: bool) -> Value {
        let choice = if is_chat {
            json!({ "index": 0, "message": { "role": "assistant", "content": self.text() }, "finish_reason": "stop" })
        } else {
            json!({ "index": 0, "text": self.text(), "logprobs": null, "finish_reason": "stop" })
        };
        let object = if is_chat { "chat.completion" } else { "text_completion" };
        let completion =
            json!({ "id": "cmpl-1", "object": object, "created": 1, "model": self.model, "choices": [choice] });
        with_usage(completion, "usage", self.openai_usage())
    }

    pub(super) fn completions(&self, is_chat: bool) -> [Vec<String>; 3] {
        let asks = self.request["stream_options"]["include_usage"] == true;
        let chunk = |choices: Value, usage: Option<Value>| {
            let object = if is_chat { "chat.completion.chunk" } else { "text_completion" };
            let chunk =
                json!({ "id": "cmpl-1", "object": object, "created": 1, "model": self.model, "choices": choices });
            data(&with_usage(chunk, "usage", usage.or(asks.then_some(Value::Null))))
        };
        let choice = |delta: Value, text: &str, finish: Value| {
            let choice = if is_chat {
                json!({ "index": 0, "delta": delta, "finish_reason": finish })
            } else {
                json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": finish })
            };
            chunk(json!([choice]), None)
        };
        let before = is_chat.then(|| choice(json!({ "role": "assistant", "content": "" }), "", Value::Null));
        let text = self.each(|piece| choice(json!({ "content": piece }), piece, Value::Null));
        let usage = self.openai_usage().filter(|_| asks).map(|usage| chunk(json!([]), Some(usage)));
        let after =
            [choice(json!({}), "", json!("stop"))].into_iter().chain(usage).chain(["data: [DONE]\n\n".to_owned()]);
        [Vec::from_iter(before), text, after.collect()]
    }

    pub(super) fn embeddings(&self) -> Value {
        let list = json!([{ "object": "embedding", "index": 0, "embedding": [0.5, 0.25] }]);
        let usage = self.answer.usage.map(|used| {
            let input = used.input + used.cached;
            json!({ "prompt_tokens": input, "total_tokens": input })
        });
        with_usage(json!({ "object": "list", "data": list, "model": self.model }), "usage", usage)
    }

    pub(super) fn response(&self, status: &str) -> Value {
        let is_whole = status == "completed";
        let output = if is_whole { json!([output_item(&self.text())]) } else { json!([]) };
        let response = json!({
            "id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": self.model, "output": output,
            "error": null, "incomplete_details": null, "instructions": null, "metadata": {}, "parallel_tool_calls": true,
            "text": { "format": { "type": "text" } }, "tool_choice": "auto", "tools": [], "temperature": 1, "top_p": 1,
        });
        let usage = self.answer.usage.map(|Used { input, cached, output }| {
            json!({
                "input_tokens": input + cached, "input_tokens_details": { "cached_tokens": cached },
                "output_tokens": output, "output_tokens_details": { "reasoning_tokens": 0 },
                "total_tokens": input + cached + output,
            })
        });
        with_usage(response, "usage", if is_whole { usage } else { Some(Value::Null) })
    }

    pub(super) fn responses(&self) -> [Vec<String>; 3] {
        let mut number = 0;
        let mut event = |kind: &str, mut fields: Value| {
            fields["type"] = kind.into();
            fields["sequence_number"] = number.into();
            number += 1;
            named(&fields)
        };
        let part = |text: &str| json!({ "type": "output_text", "text": text, "annotations": [] });
        let place = || json!({ "item_id": "msg_1", "output_index": 0, "content_index": 0 });
        let at = |name: &str, value: Value| {
            let mut fields = place();
            fields[name] = value;
            fields
        };
        let mut item = output_item("");
        item["content"] = json!([]);
        let before = vec![
            event("response.created", json!({ "response": self.response("in_progress") })),
            event("response.in_progress", json!({ "response": self.response("in_progress") })),
            event("response.output_item.added", json!({ "output_index": 0, "item": item })),
            event("response.content_part.added", at("part", part(""))),
        ];
        let text = self.each(|piece| event("response.output_text.delta", at("delta", json!(piece))));
        let whole = self.text();
        let after = vec![
            event("response.output_text.done", at("text", json!(whole))),
            event("response.content_part.done", at("part", part(&whole))),
            event("response.output_item.done", json!({ "output_index": 0, "item": output_item(&whole) })),
            event("response.completed", json!({ "response": self.response("completed") })),
        ];
        [before, text, after]
    }

    /// A stream begins with a report that hardly anything was written.
    fn anthropic_usage(&self, output: Option<u64>) -> Option<Value> {
        self.answer.usage.map(|used| {
            json!({
                "input_tokens": used.input, "cache_creation_input_tokens": 0, "cache_read_input_tokens": used.cached,
                "output_tokens": output.unwrap_or(used.output),
            })
        })
    }

    pub(super) fn message(&self) -> Value {
        let message = json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": self.model, "stop_reason": "end_turn",
            "stop_sequence": null, "content": [{ "type": "text", "text": self.text() }],
        });
        with_usage(message, "usage", self.anthropic_usage(None))
    }

    pub(super) fn messages(&self) -> [Vec<String>; 3] {
        let mut message = with_usage(self.message(), "usage", self.anthropic_usage(Some(1)));
        (message["content"], message["stop_reason"]) = (json!([]), Value::Null);
        let block = json!({ "type": "text", "text": "" });
        let before = [
            json!({ "type": "message_start", "message": message }),
            json!({ "type": "content_block_start", "index": 0, "content_block": block }),
            json!({ "type": "ping" }),
        ];
        let delta = |piece: &String| json!({ "type": "text_delta", "text": piece });
        let text = |piece: &String| named(&json!({ "type": "content_block_delta", "index": 0, "delta": delta(piece) }));
        let end = json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn", "stop_sequence": null } });
        let usage = self.answer.usage.map(|used| json!({ "output_tokens": used.output }));
        let after = [
            json!({ "type": "content_block_stop", "index": 0 }),
            with_usage(end, "usage", usage),
            json!({ "type": "message_stop" }),
        ];
        [before.iter().map(named).collect(), self.each(text), after.iter().map(named).collect()]
    }

    pub(super) fn content(&self, text: &str, is_last: bool) -> Value {
        let mut candidate = json!({ "content": { "parts": [{ "text": text }], "role": "model" }, "index": 0 });
        if is_last {
            candidate["finishReason"] = "STOP".into();
        }
        let usage = self.answer.usage.map(|Used { input, cached, output }| {
            let output = if is_last { output } else { 1 };
            json!({
                "promptTokenCount": input + cached, "cachedContentTokenCount": cached,
                "candidatesTokenCount": output, "totalTokenCount": input + cached + output,
            })
        });
        with_usage(json!({ "candidates": [candidate], "modelVersion": "gemini" }), "usageMetadata", usage)
    }

    /// Each event reports the usage so far. Gemini ends lines in another way.
    pub(super) fn contents(&self) -> [Vec<String>; 3] {
        let event = |text: &str, is_last| format!("data: {}\r\n\r\n", self.content(text, is_last));
        [Vec::new(), self.each(|piece| event(piece, false)), vec![event("", true)]]
    }
}

fn with_usage(mut object: Value, name: &str, usage: Option<Value>) -> Value {
    if let Some(usage) = usage {
        object[name] = usage;
    }
    object
}

fn output_item(text: &str) -> Value {
    let content = json!([{ "type": "output_text", "text": text, "annotations": [] }]);
    json!({ "id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content })
}
