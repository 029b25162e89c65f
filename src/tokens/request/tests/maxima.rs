//! Tests of how much output a body asks for.

use super::*;

#[test]
fn the_greatest_maximum_counts_whatever_it_is_called() {
    const MOST: u64 = u64::MAX;
    for (body, most) in [
        (r"{}", 100),
        (r#"{"max_tokens":1,"max_completion_tokens":9,"max_output_tokens":5}"#, 9),
        (r#"{"max_to\u006bens":8}"#, 8),
        (r#"{"max_tokens":1e3,"n":2.0}"#, 2000),
        (r#"{"a":{"max_tokens":9},"messages":[{"max_tokens":9}]}"#, 100),
        (r#"{"generation_config":{"maxOutputTokens":2,"candidate_count":3}}"#, 6),
        // Names that not all servers know.
        (r#"{"MAX_TO\u212AEN\u017f":8}"#, 100),
        (r#"{"MAX_TO\u212AEN\u017f":800}"#, 800),
        (r#"{"n_predict":7}"#, 100),
        (r#"{"n_predict":700}"#, 700),
        (r#"{"max_gen_len":7,"max_tokens":5}"#, 7),
        (r#"{"max_gen_len":5,"max_tokens":7}"#, 7),
        (r#"{"options":{"num_predict":7}}"#, 100),
        (r#"{"options":{"num_predict":700}}"#, 700),
        (r#"{"parameters":{"max_new_tokens":7,"best_of":2}}"#, 200),
        (r#"{"sampling_params":{"max_new_tokens":700,"n":2}}"#, 1400),
        (r#"{"inferenceConfig":{"maxTokens":700}}"#, 700),
        (r#"{"GenerationConfig":{"maxOutputTokens":7}}"#, 100),
        (r#"{"generationConfig":{"x":{"maxOutputTokens":7}}}"#, 100),
        (r#"{"generationConfig":{"max_tokens":7}}"#, 100),
        (r#"{"parameters":{"maxOutputTokens":7}}"#, 100),
        (r#"[{"max_tokens":9}]"#, 100),
        (r#"{"max_tokens":"4000"}"#, 4000),
        (r#"{"max_tokens":" 4000\n"}"#, 4000),
        (r#"{"max_tokens":"400\u0030"}"#, 4000),
        (r#"{"max_tokens":"lots"}"#, 100),
        (r#"{"max_tokens":"0x1000"}"#, 4096),
        (r#"{"max_tokens":5,"max_output_tokens":"lots"}"#, 100),
        (r#"{"max_tokens":500,"max_output_tokens":"lots"}"#, 500),
        // Values that may mean unlimited.
        (r#"{"max_tokens":null}"#, 100),
        (r#"{"max_tokens":-1}"#, 100),
        (r#"{"n_predict":-2,"max_tokens":5}"#, 100),
        (r#"{"max_tokens":0}"#, 100),
        (r#"{"max_tokens":"0"}"#, 100),
        (r#"{"max_tokens":0.0}"#, 100),
        (r#"{"max_tokens":-0}"#, 100),
        (r#"{"max_tokens":0e9,"max_completion_tokens":5}"#, 100),
        (r#"{"max_tokens":"null"}"#, 100),
        (r#"{"max_tokens":true}"#, 100),
        // Some servers read the number in an array.
        (r#"{"max_tokens":[100000]}"#, MOST),
        (r#"{"max_tokens":{}}"#, MOST),
        (r#"{"max_tokens":4000,"n":[80]}"#, MOST),
        (r#"{"n":["80"]}"#, MOST),
        (r#"{"n":[]}"#, MOST),
        // Very large and very long numbers.
        (r#"{"max_tokens":1e300}"#, MOST),
        (r#"{"max_tokens":18446744073709551616}"#, MOST),
        (r#"{"max_tokens":1111111111111111111111111111111111111111111111111111111111111111111111}"#, MOST),
        (r#"{"max_tokens":"1111111111111111111111111111111111111111111111111111111111111111111111"}"#, MOST),
        (r#"{"max_tokens":18446744073709551615,"n":2}"#, MOST),
        (r#"{"max_tokens":100.5}"#, 101),
        // Times the answers.
        (r#"{"n":0,"max_tokens":5}"#, 5),
        (r#"{"n":-1,"max_tokens":5}"#, 5),
        (r#"{"n":null,"max_tokens":5}"#, 5),
        (r#"{"n":"80","max_tokens":5}"#, 400),
        (r#"{"best_of":"80","n":2}"#, 8000),
        (r#"{"n":1.5,"max_tokens":5}"#, 10),
        (r#"{"n":1111111111111111111111111111111111111111111111111111111111111111111111}"#, MOST),
        // Times the prompts.
        (r#"{"prompt":["a","b","c"],"max_tokens":5}"#, 15),
        (r#"{"prompt":["a","b","c"],"n":"2","max_tokens":5}"#, 30),
        (r#"{"prompt":["a","b","c"]}"#, 300),
        (r#"{"prompt":["a","b"],"prompts":["a","b","c"]}"#, 300),
        (r#"{"messages":[[{"role":"user"}],[{"role":"user"}],[]]}"#, 300),
        (r#"{"messages":[{"role":"user"},[],[]]}"#, 100),
        (r#"{"prompt":[1,2,3],"max_tokens":5}"#, 5),
        (r#"{"prompt":[[1,2],[3]],"max_tokens":5}"#, 10),
        (r#"{"prompt":[],"max_tokens":5}"#, 5),
        (r#"{"prompt":"a","max_tokens":5}"#, 5),
        (r#"{"instances":[{"prompt":"a"},{"prompt":["b"]}],"parameters":{"maxOutputTokens":500}}"#, 1000),
        (r#"{"prompt_embeds":["a","b","c"],"max_tokens":5}"#, 15),
        (r#"{"text":["a","b","c"],"sampling_params":{"max_new_tokens":700,"n":8}}"#, 16_800),
        (r#"{"input_ids":[[1],[2]],"max_tokens":5}"#, 10),
        (r#"{"parameters":{"n":4,"max_tokens":4000}}"#, 16_000),
        (r#"{"n_cmpl":80,"max_tokens":5}"#, 400),
        // Requests have maxima of their own.
        (r#"{"requests":[{"params":{"max_tokens":5}},{"params":{"max_tokens":5}}]}"#, 200),
        (r#"{"requests":[{},{}],"max_tokens":5}"#, 200),
        (r#"{"input":["a","b"],"max_output_tokens":5}"#, 5),
    ] {
        let read = read(body.as_bytes(), &[]);
        assert_eq!((read.output.tokens(100), read.form), (most, Form::Json), "{body}");
    }
}
