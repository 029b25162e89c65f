//! A service that limits its clients with a library, for scripts/comparison: `service governor 8080 10 5` admits 10 requests in 5 s of
//! each X-Api-Key. It uses the library as its documentation shows.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use pingora_limits::rate::Rate;

enum Limiter {
    Governor(DefaultKeyedRateLimiter<Vec<u8>>),
    Pingora(Rate, isize),
}

impl Limiter {
    fn new(library: &str, quota: u32, window: Duration) -> Self {
        match library {
            "governor" => {
                let quota = Quota::with_period(window / quota).unwrap().allow_burst(quota.try_into().unwrap());
                Self::Governor(DefaultKeyedRateLimiter::keyed(quota))
            }
            "pingora" => Self::Pingora(Rate::new(window), quota.try_into().unwrap()),
            other => panic!("there is no library {other}"),
        }
    }

    /// A refusal has the seconds until there is room, if the library knows them.
    fn check(&self, key: &[u8]) -> Result<(), Option<u64>> {
        match self {
            Self::Governor(limiter) => limiter.check_key(&key.to_vec()).map_err(|refusal| {
                let wait = refusal.wait_time_from(DefaultClock::default().now());
                Some(wait.as_secs_f64().ceil() as u64)
            }),
            Self::Pingora(rate, most) => {
                if rate.observe(&key, 1) > *most {
                    Err(None)
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Forgets clients that have all their requests again.
    fn forget(&self) {
        if let Self::Governor(limiter) = self {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
    }
}

fn answer(limiter: &Limiter, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let key = request.headers().get("x-api-key").map_or(&b""[..], |key| key.as_bytes());
    let response = Response::builder().header("content-type", "text/plain");
    let path = request.uri().path();
    match if path == "/free" { Ok(()) } else { limiter.check(key) } {
        Ok(()) => response.status(if path == "/failing" { 500 } else { 200 }).body("ok\n".into()),
        Err(Some(seconds)) => response.status(429).header("retry-after", seconds).body("too many requests\n".into()),
        Err(None) => response.status(429).body("too many requests\n".into()),
    }
    .unwrap()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let [library, port, quota, window] = std::env::args().skip(1).collect::<Vec<_>>().try_into().unwrap();
    let window = Duration::from_secs(window.parse().unwrap());
    let limiter = Arc::new(Limiter::new(&library, quota.parse().unwrap(), window));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port.parse::<u16>().unwrap())).await.unwrap();
    let old = Arc::clone(&limiter);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(window).await;
            old.forget();
        }
    });
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let response = answer(&limiter, &request);
                async { Ok::<_, Infallible>(response) }
            });
            // A client that goes away ends its connection with an error.
            _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
