//! Meters side by side on one store: what is charged in the end, and what passes until then.

mod endings;

use std::task::Waker;

use http::HeaderValue;
use proptest::prelude::*;

use super::*;
use crate::base::clock;
use crate::base::fingerprint::Fingerprint;
use crate::config::{OnExhausted, TokenCost, WithoutUsage};
use crate::limit::Limit;
use crate::request::decide::{Beyond, LimitMetrics, OpenReservation};
use crate::store::memory::Memory;
use crate::store::{Answer, Ask, Counters};
use crate::tokens::Weights;
use crate::tokens::request::{AskedOutput, InputSize};

const EVENTS: &str = "text/event-stream";

/// A body whose pieces have all arrived.
#[derive(Default)]
struct Pieces(VecDeque<Result<Frame<Bytes>, BodyError>>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(self.0.pop_front())
    }
}

struct Counted {
    store: Arc<Store>,
    limit: Arc<Limit>,
    metrics: Arc<LimitMetrics>,
}

impl Counted {
    fn new(rates: &[&str]) -> Self {
        let rates: Vec<_> = rates.iter().map(|rate| rate.parse().unwrap()).collect();
        Self {
            store: Arc::new(Store::from(Memory::new(100, usize::MAX))),
            limit: Arc::new(Limit::new("tokens", &rates)),
            metrics: Arc::new(LimitMetrics::new("tokens", 1)),
        }
    }

    fn key() -> Fingerprint {
        Fingerprint::of(b"key")
    }

    fn used(&self) -> u64 {
        let Counters::Memory(memory) = &self.store.counters else { unreachable!() };
        memory.peek(&self.limit, Self::key(), clock::now()).rates[0].used
    }

    /// `None` if there is no room.
    fn reserve(&self, cost: u64, weights: Weights, on_exhausted: OnExhausted) -> Option<MeteredLimit> {
        self.reserve_by(
            cost,
            TokenCost { weights, on_exhausted, without_usage: WithoutUsage::Size, ..TokenCost::default() },
        )
    }

    fn reserve_by(&self, cost: u64, by: TokenCost) -> Option<MeteredLimit> {
        let ask = Ask { settles: true, ..Ask::new(&self.limit, Self::key(), cost) };
        let Answer::Now(reply) = self.store.decide(&[ask], clock::now(), 0) else { unreachable!() };
        let (weights, least) = (SmallVec::from_iter([by.weights]), 0);
        let beyond = if by.on_exhausted == OnExhausted::Cut { Beyond::Refused } else { Beyond::Settled };
        let (costs, metrics) = (SmallVec::from_iter([Arc::new(by)]), self.metrics.clone());
        let tokens = Usage { output: cost, ..Usage::default() };
        let open = OpenReservation::new(reply.reserved.into_iter().next()?, beyond);
        Some(MeteredLimit { costs, tokens, weights, least, metrics, open })
    }

    fn meter(&self, limit: MeteredLimit, input: u64, kind: &'static str, hides_usage: bool) -> TokenMeter {
        self.meter_of(limit, kind, MeteredRequest { hides_usage, ..request(input) })
    }

    fn meter_of(&self, limit: MeteredLimit, kind: &'static str, request: MeteredRequest) -> TokenMeter {
        let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
        let limits = SmallVec::from_iter([limit]);
        TokenMeter::new(self.store.clone(), 0, limits, request, &UsageSource::Auto, &mut headers)
    }

    /// What a response costs whose request has 5 tokens and reserves 50: with [`WithoutUsage::Reserved`] and with `Size`.
    fn costs(kind: &'static str, pieces: &[&str]) -> [u64; 2] {
        [WithoutUsage::Reserved, WithoutUsage::Size].map(|without_usage| {
            let counted = Self::new(&["10000/h"]);
            let limit = counted.reserve_by(50, TokenCost { without_usage, ..TokenCost::default() }).unwrap();
            drain(counted.meter(limit, 5, kind, false), pieces);
            counted.used()
        })
    }

    /// Meters one response. Returns what has passed, and the final charge of the key.
    fn run(&self, kind: &'static str, cost: u64, pieces: &[&str]) -> (String, u64) {
        let limit = self.reserve(cost, Weights::default(), OnExhausted::Finish).unwrap();
        let mut meter = self.meter(limit, 5, kind, true);
        let (mut body, mut passed) = (self::pieces(pieces), Vec::new());
        while let Some(data) = next(&mut meter, &mut body).unwrap() {
            passed.extend_from_slice(&data);
        }
        let charged = self.used();
        meter.close();
        assert_eq!(self.used(), charged, "it is settled before its end has passed");
        (String::from_utf8(passed).unwrap(), charged)
    }
}

/// A request for one answer.
fn request(input: u64) -> MeteredRequest {
    let output = AskedOutput { most: 0, is_bounded: false, is_uncertain: false, answers: 1 };
    MeteredRequest { input, size: InputSize::default(), output, model: None, hides_usage: false, is_error: false }
}

fn pieces(parts: &[&str]) -> Pieces {
    Pieces(parts.iter().map(|part| Ok(Frame::data(Bytes::from(part.to_string())))).collect())
}

/// Sends a whole response. Returns what has passed.
fn drain(mut meter: TokenMeter, parts: &[&str]) -> String {
    let (mut body, mut passed) = (pieces(parts), Vec::new());
    while let Some(data) = next(&mut meter, &mut body).unwrap() {
        passed.extend_from_slice(&data);
    }
    meter.close();
    String::from_utf8(passed).unwrap()
}

fn next(meter: &mut TokenMeter, body: &mut Pieces) -> Result<Option<Bytes>, String> {
    match meter.poll_frame(body, &mut Context::from_waker(Waker::noop())).map_err(|error| error.to_string()) {
        Poll::Ready(frame) => frame.transpose().map(|frame| frame.and_then(|frame| frame.into_data().ok())),
        Poll::Pending => panic!("all of it is there"),
    }
}

fn piece(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}],\"usage\":null}}\n\n")
}

const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"total_tokens\":9}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

#[test]
fn a_response_costs_what_it_says() {
    let (four, eight) = (piece("four"), piece("eight   "));
    for pieces in [&[&*four, &eight, USAGE, DONE][..], &[&[&*four, &eight, USAGE, DONE].concat()]] {
        let counted = Counted::new(&["100/h"]);
        let (passed, charged) = counted.run(EVENTS, 50, pieces);
        assert_eq!((passed, charged), ([&*four, &eight, DONE].concat(), 9));
        let total = counted.metrics.tokens.total();
        assert_eq!((total.reserved, total.settled, total.estimated), (50, 9, 0));
    }
    let body = r#"{"choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":70,"completion_tokens":50}}"#;
    assert_eq!(Counted::new(&["100/h"]).run("application/json", 50, &[body]), (body.to_owned(), 120), "past the quota");
}

#[test]
fn a_response_that_says_nothing_costs_its_text_and_that_of_the_request() {
    let counted = Counted::new(&["100/h"]);
    let (passed, charged) = counted.run(EVENTS, 50, &[&piece("four"), &piece("eight   "), DONE]);
    assert_eq!((passed, charged), ([piece("four"), piece("eight   "), DONE.to_owned()].concat(), 8));
    assert_eq!(counted.metrics.tokens.total().estimated, 1);
    assert_eq!(Counted::new(&["100/h"]).run("text/plain", 50, &["123456789"]).1, 8);
    assert_eq!(Counted::new(&["100/h"]).run(EVENTS, 50, &[]).1, 5);
}

#[test]
fn a_response_that_breaks_off_costs_at_least_what_has_passed() {
    let begin = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":20,\
                 \"output_tokens\":1}}}\n\n";
    let delta =
        "data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"0123456789ab\"}}\n\n";
    let late = Counted::new(&["100/h"]);
    let mut meter = late.meter(late.reserve_by(60, TokenCost::default()).unwrap(), 5, EVENTS, false);
    assert!(next(&mut meter, &mut Pieces([Err(BodyError::BodyTimeout(READ_ON_FOR))].into())).is_err());
    assert_eq!(late.used(), 60, "the client has chosen that");
    for fails in [true, false] {
        let counted = Counted::new(&["100/h"]);
        let limit = counted.reserve(60, Weights::default(), OnExhausted::Finish).unwrap();
        let mut meter = counted.meter(limit, 5, EVENTS, false);
        let pieces = [begin, delta].map(|piece| Ok(Frame::data(Bytes::from(piece))));
        let mut body = Pieces(pieces.into_iter().chain(fails.then_some(Err(BodyError::Truncated))).collect());
        assert_eq!(next(&mut meter, &mut body).unwrap().unwrap(), begin);
        assert_eq!(next(&mut meter, &mut body).unwrap().unwrap(), delta);
        assert_eq!(counted.used(), 60, "it is reserved until then");
        if fails {
            assert_eq!(next(&mut meter, &mut body).unwrap_err(), BodyError::Truncated.to_string());
            assert_eq!(counted.used(), 23);
        }
        assert_eq!(meter.close(), Usage { input: 20, cached: 0, output: 3 });
        assert_eq!(counted.used(), 23);
    }
}

#[test]
fn a_stream_is_cut_where_there_is_no_room() {
    let counted = Counted::new(&["100/h"]);
    let limit = counted.reserve(20, Weights::default(), OnExhausted::Cut).unwrap();
    let mut meter = counted.meter(limit, 10, EVENTS, false);
    // Ten tokens.
    let text = piece(&"x".repeat(40));
    let mut body = Pieces((0..20).map(|_| Ok(Frame::data(Bytes::from(text.clone())))).collect());
    for count in 1..=9 {
        assert_eq!(next(&mut meter, &mut body).unwrap().unwrap(), text, "{count}");
    }
    assert!(!meter.was_cut());
    let last = next(&mut meter, &mut body).unwrap().unwrap();
    let error = "data: {\"error\":{\"code\":\"rate_limit_exceeded\",";
    assert!(last.starts_with(error.as_bytes()) && last.ends_with(b"\n\n"), "{last:?}");
    assert!(meter.was_cut() && meter.is_over() && body.0.is_empty());
    assert_eq!(next(&mut meter, &mut body), Ok(None));
    assert_eq!((counted.used(), meter.close().output), (100, 90));
    let total = counted.metrics.tokens.total();
    assert_eq!((total.cut, total.settled, total.used.output), (1, 100, 90));
}

#[test]
fn streams_that_are_no_events_are_cut_between_their_parts() {
    let text = "x".repeat(40);
    let chunk = format!("{{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}");
    let gemini = format!("{{\"candidates\":[{{\"content\":{{\"parts\":[{{\"text\":\"{text}\"}}]}}}}]}}");
    let (line, values) = (format!("{chunk}\n"), format!("\n{chunk}"));
    let elements = [format!("[{gemini}"), format!("\r\n,{gemini}")];
    for (kind, first, other) in [
        ("application/x-ndjson", &line, &line),
        ("application/json", &elements[0], &elements[1]),
        ("application/stream+json", &chunk, &values),
    ] {
        for size in [7, 100] {
            let counted = Counted::new(&["100/h"]);
            let limit = counted.reserve(20, Weights::default(), OnExhausted::Cut).unwrap();
            let body = first.clone() + &other.repeat(19);
            let parts: Vec<_> = body.as_bytes().chunks(size).map(|part| str::from_utf8(part).unwrap()).collect();
            let passed = drain(counted.meter(limit, 10, kind, false), &parts);
            let count = passed.matches(&text).count();
            assert!((6..=9).contains(&count), "{kind}: {passed}");
            assert!((10 * count..=100).contains(&(usize::try_from(counted.used()).unwrap())), "{kind}: {passed}");
            let values = match kind {
                "application/json" => serde_json::from_str::<Vec<serde_json::Value>>(&passed).unwrap(),
                _ => serde_json::Deserializer::from_str(&passed).into_iter().map(Result::unwrap).collect(),
            };
            assert_eq!(values.len(), count + 1, "{kind}: {passed}");
            let code = if kind == "application/json" { "RESOURCE_EXHAUSTED" } else { "rate_limit_exceeded" };
            assert!(values[count]["error"].to_string().contains(code), "{kind}: {passed}");
        }
    }
    // A stream of which nothing has passed.
    let counted = Counted::new(&["10/h"]);
    let limit = counted.reserve(10, Weights::default(), OnExhausted::Cut).unwrap();
    let passed = drain(counted.meter(limit, 10, "application/json", false), &[&elements[0], "]"]);
    assert_eq!(serde_json::from_str::<Vec<serde_json::Value>>(&passed).unwrap().len(), 1, "{passed}");
}

#[test]
fn only_streams_are_cut() {
    for kind in ["application/json", "text/plain"] {
        let counted = Counted::new(&["100/h"]);
        let limit = counted.reserve(20, Weights::default(), OnExhausted::Cut).unwrap();
        let mut meter = counted.meter(limit, 10, kind, false);
        let pieces: Vec<_> =
            (0..20).map(|place| if place == 0 { format!("\"{:x<39}", "") } else { "x".repeat(40) }).collect();
        let mut body = Pieces(pieces.iter().map(|piece| Ok(Frame::data(Bytes::from(piece.clone())))).collect());
        for piece in &pieces {
            assert_eq!(next(&mut meter, &mut body).unwrap().unwrap(), piece, "{kind}");
        }
        assert_eq!(next(&mut meter, &mut body), Ok(None));
        assert_eq!(counted.used(), 210, "{kind}");
    }
    let whole = format!("{{\"choices\":[{{\"message\":{{\"content\":\"{}\"}}}}]}}\n", "x".repeat(4000));
    let counted = Counted::new(&["100/h"]);
    let limit = counted.reserve(20, Weights::default(), OnExhausted::Cut).unwrap();
    assert_eq!(drain(counted.meter(limit, 10, "application/json", false), &[&whole[..100], &whole[100..]]), whole);
    let limit = Counted::new(&["100/h"]).reserve(20, Weights::default(), OnExhausted::Cut).unwrap();
    let mut headers = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (CONTENT_LENGTH, HeaderValue::from_static("9")),
    ]);
    let limits = SmallVec::from_iter([limit]);
    let meter = TokenMeter::new(counted.store.clone(), 0, limits, request(0), &UsageSource::Auto, &mut headers);
    assert!(meter.keeps_length() && headers.contains_key(CONTENT_LENGTH), "it is complete already");
}

/// A body that ends with its last piece, as one with a length does.
#[derive(Default)]
struct WithEnd(Pieces);

impl Body for WithEnd {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.0.is_empty()
    }
}

#[test]
fn a_stream_whose_end_comes_with_its_last_piece_is_cut_and_settled_before_it_passes() {
    for (size, cost, is_cut) in [(4000, 20, true), (200, 60, false)] {
        let counted = Counted::new(&["100/h"]);
        let limit = counted.reserve(20, Weights::default(), OnExhausted::Cut).unwrap();
        let (mut meter, text) = (counted.meter(limit, 10, EVENTS, false), piece(&"x".repeat(size)));
        let mut body = WithEnd(pieces(&[&text]));
        let Poll::Ready(Some(Ok(frame))) = meter.poll_frame(&mut body, &mut Context::from_waker(Waker::noop())) else {
            panic!("all of it is there")
        };
        assert_eq!((meter.was_cut(), frame.into_data().unwrap() != text), (is_cut, is_cut), "{size}");
        assert!(meter.is_over());
        assert_eq!(counted.used(), if is_cut { 10 } else { cost }, "{size}");
    }
}

#[test]
fn what_is_said_at_the_end_cuts_nothing() {
    let counted = Counted::new(&["100/h"]);
    let limit = counted.reserve(20, Weights::default(), OnExhausted::Cut).unwrap();
    let mut meter = counted.meter(limit, 10, EVENTS, false);
    let usage = USAGE.replace(":2,", ":200,");
    let pieces = [piece("four"), usage, DONE.to_owned()];
    let mut body = Pieces(pieces.iter().map(|piece| Ok(Frame::data(Bytes::from(piece.clone())))).collect());
    for piece in &pieces {
        assert_eq!(next(&mut meter, &mut body).unwrap().unwrap(), piece);
    }
    assert_eq!(next(&mut meter, &mut body), Ok(None));
    assert_eq!(counted.used(), 207);
}

#[test]
fn trailers_come_last() {
    let counted = Counted::new(&["100/h"]);
    let limit = counted.reserve(20, Weights::default(), OnExhausted::Finish).unwrap();
    let mut meter = counted.meter(limit, 10, EVENTS, true);
    let trailers = HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from_static("1"))]);
    let (frames, rest) =
        ([Ok(Frame::data(Bytes::from("data: unfinished"))), Ok(Frame::trailers(trailers.clone()))], "data: unfinished");
    let mut body = Pieces(frames.into_iter().collect());
    assert_eq!(next(&mut meter, &mut body).unwrap().unwrap(), rest);
    let Poll::Ready(Some(Ok(frame))) = meter.poll_frame(&mut body, &mut Context::from_waker(Waker::noop())) else {
        panic!("the trailers are there")
    };
    assert_eq!(frame.into_trailers().unwrap(), trailers);
    assert!(meter.is_over());
}

proptest! {
    /// Streams that are cut never use more than there is, in whatever order their events come. If all of them are finished,
    /// the charge is what they have used.
    #[test]
    fn streams_side_by_side_use_what_they_have_together(
        quota in 1_u64..400,
        cuts: bool,
        weight in prop::sample::select(vec!["1", "0.3", "2.5"]),
        streams in prop::collection::vec((1_u64..60, 0_u64..30, prop::collection::vec(0_usize..120, 0..12)), 1..6),
        order in prop::collection::vec(0_usize..6, 0..80),
    ) {
        let counted = Counted::new(&[&format!("{quota}/31d")]);
        let weights = Weights { output: weight.parse().unwrap(), ..Weights::default() };
        let on_exhausted = if cuts { OnExhausted::Cut } else { OnExhausted::Finish };
        let mut running: Vec<_> = streams.iter().filter_map(|(reserved, input, events)| {
            let limit = counted.reserve((*reserved).min(quota), weights, on_exhausted)?;
            // The reservation has room for the input.
            let meter = counted.meter(limit, (*input).min(*reserved).min(quota), EVENTS, false);
            let pieces = events.iter().map(|size| Ok(Frame::data(Bytes::from(piece(&"x".repeat(*size))))));
            Some((meter, Pieces(pieces.collect())))
        }).collect();
        let mut sum = 0;
        for place in order {
            if let Some((meter, body)) = running.get_mut(place) {
                let _ = next(meter, body);
            }
            prop_assert!(!cuts || counted.used() <= quota);
        }
        for (meter, _) in running {
            sum += weights.cost(meter.close());
            prop_assert!(!cuts || counted.used() <= quota);
        }
        prop_assert_eq!(counted.used(), sum);
    }
}
