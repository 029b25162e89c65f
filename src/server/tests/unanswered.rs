//! Requests that are left unanswered.

use h2::client::{ResponseFuture, SendRequest, handshake};
use h2::{Reason, RecvStream};
use http::Request;

use super::*;

/// Until the server closes the connection.
async fn rest(client: &mut TestClient) -> Vec<u8> {
    let mut rest = Vec::new();
    client.stream.read_to_end(&mut rest).await.unwrap();
    rest
}

#[test]
fn the_connection_is_closed_without_a_byte() {
    let body = b"POST /unanswered HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\nabc";
    for request in [UNANSWERED, body] {
        with_client(async |mut client| {
            assert_eq!(client.ask_all(&[A, A]).await, [1, 2]);
            client.stream.write_all(request).await.unwrap();
            assert_eq!(rest(&mut client).await, b"");
        });
    }
}

#[test]
fn earlier_responses_are_sent_and_later_requests_are_not_served() {
    with_client(async |mut client| {
        client.stream.write_all(&[A, B, UNANSWERED, A].concat()).await.unwrap();
        assert_eq!((client.answer().await, client.answer().await), (1, 2));
        assert_eq!(rest(&mut client).await, b"");
        assert_eq!(client.numbers.handled.get(), 3);
    });
}

#[test]
fn an_earlier_response_that_the_client_has_not_read_is_sent() {
    with_client(async |mut client| {
        // The last of these is read while those before it wait for the client. The system has buffers of unknown sizes.
        let mut sent = 0;
        client.numbers.padding.set(3000);
        while client.leave(A).await {
            sent += 1;
        }
        client.stream.write_all(UNANSWERED).await.unwrap();
        client.stage.send(Stage::Draining).unwrap();
        for number in 1..=sent + 1 {
            assert_eq!(client.answer().await, number, "of {sent}");
        }
        assert_eq!(rest(&mut client).await, b"");
    });
}

struct Http2Client {
    requests: SendRequest<Bytes>,
    numbers: Rc<Numbers>,
    /// Dropping it would make the server drain.
    _stage: watch::Sender<Stage>,
}

impl Http2Client {
    async fn new(client: TestClient) -> Self {
        let (requests, connection) = handshake(client.stream).await.unwrap();
        spawn_local(connection);
        Self { requests, numbers: client.numbers, _stage: client.stage }
    }

    async fn send(&mut self, path: &str) -> ResponseFuture {
        self.requests = self.requests.clone().ready().await.unwrap();
        let request = Request::get(format!("http://h{path}")).body(()).unwrap();
        self.requests.send_request(request, true).unwrap().0
    }

    async fn ask(&mut self, path: &str) -> Result<Response<RecvStream>, h2::Error> {
        self.send(path).await.await
    }
}

#[test]
fn streams_are_reset_and_others_on_the_connection_are_served() {
    with_client(async |client| {
        let mut client = Http2Client::new(client).await;
        client.numbers.padding.set(30_000);
        let in_flight = client.send("/waits").await;
        for _ in 0..5 {
            let error = client.ask("/unanswered").await.unwrap_err();
            assert_eq!((error.reason(), error.is_reset()), (Some(Reason::ENHANCE_YOUR_CALM), true));
            assert_eq!(client.ask("/a").await.unwrap().status(), StatusCode::OK);
        }
        client.numbers.waits.notify_one();
        let mut body = in_flight.await.unwrap().into_body();
        let mut length = 0;
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            length += data.len();
        }
        assert_eq!(length, 30_000);
    });
}
