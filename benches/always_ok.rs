//! The smallest rate limit service of Envoy's protocol: it admits everything, on one thread. The gateway's extra cost over this
//! service is the cost of its decisions. `scripts/bench --scenario decisions` measures both.
//!
//! It listens at the address in its argument.

use std::error::Error;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use gateway::proxy::respond::grpc::{MessageBody, message_of};
use gateway::request::descriptors::messages::{Code, DescriptorStatus, RateLimitRequest, RateLimitResponse};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

fn main() -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = std::env::args().nth(1).ok_or("the address is missing")?.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind(address).await?;
        loop {
            tokio::task::spawn_local(connection(listener.accept().await?.0));
        }
    })
}

async fn connection(stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut connection = h2::server::Builder::new().max_concurrent_streams(1000).handshake(stream).await.ok()?;
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::task::spawn_local(call(request, respond));
    }
    None
}

async fn call(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Option<()> {
    let (mut body, mut bytes) = (request.into_body(), BytesMut::new());
    while let Some(Ok(data)) = body.data().await {
        body.flow_control().release_capacity(data.len()).ok()?;
        bytes.extend_from_slice(&data);
    }
    let call = RateLimitRequest::decode(message_of(bytes.freeze()).ok()?).ok()?;
    let ok = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    let statuses = vec![ok; call.descriptors.len()];
    let answer = RateLimitResponse { overall_code: Code::Ok.into(), statuses, ..RateLimitResponse::default() };
    let (head, mut message) = MessageBody::response(&answer).into_parts();
    let mut stream = respond.send_response(Response::from_parts(head, ()), false).ok()?;
    while let Some(frame) = message.next_frame() {
        match frame.into_data() {
            Ok(data) => stream.send_data(data, false).ok()?,
            Err(frame) => stream.send_trailers(frame.into_trailers().ok()?).ok()?,
        }
    }
    Some(())
}
