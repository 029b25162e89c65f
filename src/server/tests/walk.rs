//! Connections at random: requests come in pieces or together, and the client reads responses late.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
struct Step {
    request: &'static [u8],
    /// The request is sent in two pieces, and this is the length of the first.
    cut: Option<usize>,
    /// With the next request.
    joins: bool,
    /// The client reads all responses so far.
    takes: bool,
    /// Of responses from now on.
    padding: usize,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let request = prop_oneof![6 => Just(A), 2 => Just(HEAD), 1 => Just(B), 2 => Just(CHUNKED)];
    let cut = prop_oneof![4 => Just(None), 1 => (1..40_usize).prop_map(Some)];
    let (joins, takes) = (prop::bool::weighted(0.2), prop::bool::weighted(0.5));
    let step = (request, cut, joins, takes, prop_oneof![Just(1), 500..3500_usize])
        .prop_map(|(request, cut, joins, takes, padding)| Step { request, cut, joins, takes, padding });
    prop::collection::vec((step, 1..5_usize), 1..20)
        .prop_map(|runs| runs.into_iter().flat_map(|(step, times)| vec![step; times]).collect())
}

/// The responses have to come in order.
async fn walk(mut client: TestClient, steps: Vec<Step>) {
    let (mut together, mut due, mut last) = (Vec::new(), Vec::new(), 0);
    let count = steps.len();
    for (at, step) in steps.into_iter().enumerate() {
        let Step { request, cut, joins, takes, padding } = step;
        client.numbers.padding.set(padding);
        together.extend_from_slice(request);
        due.push(request);
        if joins && at + 1 < count {
            continue;
        }
        let (first, second) = together.split_at(cut.unwrap_or(0).min(together.len() - 1));
        client.stream.write_all(first).await.unwrap();
        for _ in 0..20 {
            yield_now().await;
        }
        client.stream.write_all(second).await.unwrap();
        together.clear();
        for _ in 0..20 {
            yield_now().await;
        }
        if !takes && at + 1 < count {
            continue;
        }
        for request in due.drain(..) {
            let head = client.head().await;
            let path = std::str::from_utf8(request).unwrap().split(' ').nth(1).unwrap();
            assert!(head.starts_with("HTTP/1.1 200") && head.contains(&format!("for: {path}\r\n")), "{head}");
            if request != HEAD {
                let number = client.body(&head).await;
                assert!(number > last, "{number} after {last}");
                last = number;
            }
        }
    }
    client.stream.shutdown().await.unwrap();
    assert_eq!(client.stream.read(&mut [0]).await.unwrap(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn every_request_is_answered_in_order(steps in steps()) {
        with_client(async |client| walk(client, steps).await);
    }
}
