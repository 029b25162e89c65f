//! The costs of responses that do not state their usage, state it late, or are errors; and the model that counts.

use super::*;
use crate::base::wildcard::Wildcard;
use crate::config::ModelWeights;

const START: &str =
    "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":20,\"output_tokens\":1}}}\n\n";
const FAILED: &str = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";

#[test]
fn a_success_that_does_not_say_its_usage_costs_what_was_reserved_or_its_size() {
    let text = |length: usize| {
        format!("data: {{\"delta\":{{\"type\":\"text_delta\",\"text\":\"{}\"}}}}\n\n", "x".repeat(length))
    };
    let (short, long) = (text(40), text(4000));
    let zeros = piece(&"x".repeat(40)) + &USAGE.replace(":7,", ":0,").replace(":2,", ":0,").replace(":9}", ":0}");
    let bad = piece("") + &USAGE.replace(":2,", ":-2,").replace(",\"total_tokens\":9", "");
    for (pieces, costs) in [
        (&[][..], [50, 5]),
        (&[&*short], [50, 15]),
        (&[&long], [1005, 1005]),
        (&[START, &short], [50, 30]),
        (&[START, &long], [1020, 1020]),
        // A provider's failure is not a success.
        (&[START, &short, FAILED], [30, 30]),
        (&[START, &long, FAILED], [1020, 1020]),
        (&[&zeros, DONE], [50, 15]),
        (&[&bad, &short, DONE], [50, 17]),
    ] {
        assert_eq!(Counted::costs(EVENTS, pieces), costs, "{pieces:?}");
    }
    assert_eq!(Counted::costs("text/plain", &["12345678"]), [50, 7]);
    let gemini =
        "{\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"TEXT\"}]}}],\"usageMetadata\":{\"promptTokenCount\":9,\
                  \"candidatesTokenCount\":1}}"
            .replace("TEXT", &"x".repeat(4000));
    assert_eq!(Counted::costs("application/json", &["[", &gemini, "]"]), [1009, 1009]);
    assert_eq!(Counted::costs(EVENTS, &["data: ", &gemini, "\n\n"]), [1009, 1009]);
}

#[test]
fn a_client_that_goes_away_costs_what_was_reserved_or_what_has_passed() {
    for (without_usage, cost) in [(WithoutUsage::Reserved, 60), (WithoutUsage::Size, 15)] {
        let counted = Counted::new(&["100/h"]);
        let limit = counted.reserve_by(60, TokenCost { without_usage, ..TokenCost::default() }).unwrap();
        let (mut meter, text) = (counted.meter(limit, 5, EVENTS, false), piece(&"x".repeat(40)));
        assert_eq!(next(&mut meter, &mut pieces(&[&text])).unwrap().unwrap(), text);
        assert!(!meter.waits_for_usage());
        meter.close();
        assert_eq!(counted.used(), cost);
    }
}

/// A body that never continues.
#[derive(Default)]
struct Silent;
impl Body for Silent {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Pending
    }
}

#[tokio::test]
async fn a_complete_answer_is_read_on_for_its_usage() {
    let finished = piece("four").replace("}}]", "},\"finish_reason\":\"stop\"}]");
    let junk = ": junk\n\n".repeat(1 << 12);
    let many: Vec<_> = std::iter::repeat_n(&*junk, 20).chain([USAGE]).collect();
    for (rest, cost) in [(&[USAGE, DONE][..], 9), (&[USAGE], 9), (&[], 60), (&many, 60)] {
        let counted = Counted::new(&["100/h"]);
        let limit = counted.reserve_by(60, TokenCost::default()).unwrap();
        let mut meter = counted.meter(limit, 5, EVENTS, true);
        let mut body = pieces(&[&[&*finished], rest].concat());
        assert!(next(&mut meter, &mut body).unwrap().is_some());
        assert!(meter.waits_for_usage());
        Box::new(meter).read_on(body, READ_ON_FOR).await;
        assert_eq!(counted.used(), cost, "{}", rest.len());
    }
    let counted = Counted::new(&["100/h"]);
    let limit = counted.reserve_by(60, TokenCost::default()).unwrap();
    let mut meter = counted.meter(limit, 5, EVENTS, true);
    assert!(next(&mut meter, &mut pieces(&[&finished])).unwrap().is_some());
    Box::new(meter).read_on(Silent, Duration::from_millis(1)).await;
    assert_eq!(counted.used(), 60);
}

#[test]
fn an_error_costs_the_usage_that_it_says() {
    for (body, cost) in [
        ("{\"error\":{\"message\":\"no\"},\"usage\":{\"prompt_tokens\":70,\"completion_tokens\":50}}", 120),
        ("{\"error\":{\"message\":\"no\"},\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}}", 0),
        ("{\"error\":{\"message\":\"no\"}}", 0),
        ("no", 0),
    ] {
        let counted = Counted::new(&["1000/h"]);
        let limit = counted.reserve_by(60, TokenCost::default()).unwrap();
        let meter = counted.meter_of(limit, "application/json", MeteredRequest { is_error: true, ..request(5) });
        assert!(meter.waits_for_usage());
        assert_eq!(drain(meter, &[body]), body);
        assert_eq!(counted.used(), cost, "{body}");
        assert_eq!(counted.metrics.tokens.total().estimated, 0);
    }
}

#[test]
fn the_dearer_of_two_models_is_charged() {
    let weights = |text: &str| Weights { output: text.parse().unwrap(), ..Weights::default() };
    let model =
        |pattern: &str, text: &str| ModelWeights { pattern: Wildcard(pattern.to_owned()), weights: weights(text) };
    let cost = || TokenCost {
        weights: weights("5"),
        models: vec![model("small", "1"), model("large*", "10")],
        ..TokenCost::default()
    };
    for (asked, answered, charged) in [
        ("small", "small", 3),
        ("small", "large-1", 21),
        ("large", "small", 21),
        ("small", "other", 11),
        ("small", "", 3),
    ] {
        let counted = Counted::new(&["1000/h"]);
        let mut limit = counted.reserve_by(60, cost()).unwrap();
        limit.weights = SmallVec::from_iter([cost().weights(Some(asked.as_bytes()))]);
        let said = format!("{{\"model\":\"{answered}\",\"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":2}}}}");
        drain(counted.meter(limit, 5, "application/json", false), &[&said]);
        assert_eq!(counted.used(), charged, "{asked} {answered}");
    }
    let weighed = || {
        let (counted, model) = (Counted::new(&["1000/h"]), Some(&b"small"[..]));
        let mut limit = counted.reserve_by(60, cost()).unwrap();
        limit.weights = SmallVec::from_iter([cost().weights(model)]);
        (counted, limit)
    };
    // However the models come.
    let said = |model: &str| {
        format!(
            "data: {{\"model\":\"{model}\",\"choices\":[],\"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":2}}}}\n\n"
        )
    };
    let (large, small) = (said("large"), said("small"));
    for pieces in [&[&*large, &small][..], &[&[&*small, &large, &small].concat()], &[&large.repeat(2), &small]] {
        let (counted, limit) = weighed();
        drain(counted.meter(limit, 5, EVENTS, false), pieces);
        assert_eq!(counted.used(), 21, "{pieces:?}");
    }
    // Without a usage.
    for (asks, charged) in [(60, 600), (61, 60)] {
        let (counted, mut limit) = weighed();
        limit.tokens.output = asks;
        drain(counted.meter(limit, 5, EVENTS, false), &["data: {\"model\":\"large\"}\n\n"]);
        assert_eq!(counted.used(), charged, "{asks}");
    }
}

#[test]
fn of_several_answers_only_the_last_end_is_final() {
    let part = |place: u64, finish: &str| {
        format!(
            "data: {{\"candidates\":[{{\"content\":{{\"parts\":[{{\"text\":\"a\"}}]}},\"index\":{place}{finish}}}],\
             \"usageMetadata\":{{\"promptTokenCount\":7,\"candidatesTokenCount\":{}}}}}\n\n",
            place + 1
        )
    };
    let stop = ",\"finishReason\":\"STOP\"";
    for (answers, finish, ends, cost) in
        [(1, stop, false, 9), (2, stop, false, 60), (2, stop, true, 9), (1, "", false, 60), (2, "", true, 60)]
    {
        let (first, second) = (part(0, stop), part(1, finish));
        let counted = Counted::new(&["100/h"]);
        let limit = counted.reserve_by(60, TokenCost::default()).unwrap();
        let output = AskedOutput { most: 0, is_bounded: false, is_uncertain: false, answers };
        let mut meter = counted.meter_of(limit, EVENTS, MeteredRequest { output, ..request(5) });
        let mut body = pieces(&[&first, &second]);
        for _ in 0..2 {
            assert!(next(&mut meter, &mut body).unwrap().is_some());
        }
        assert_eq!(meter.waits_for_usage(), answers > 1 && finish == stop);
        if ends {
            assert_eq!(next(&mut meter, &mut body), Ok(None));
        }
        meter.close();
        assert_eq!(counted.used(), cost, "{answers} {finish} {ends}");
    }
}
