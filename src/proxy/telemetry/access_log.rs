//! The access log of one worker: in which form its lines are, where they go, and which refusals have one.
//!
//! A flood of requests must not cause a flood of lines, so refusals can be sampled: the first few of each client in a second
//! are logged, and one line afterwards says how many were not. If there are too many clients in a second, the remaining ones
//! are counted together.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;

use foldhash::fast::RandomState;
use tracing::Level;

use super::access_line::AccessLine;
use crate::base::clock::Time;
use crate::config::AccessFormat;
use crate::net::network_of;
use crate::proxy::log::{LineBuffer, LineWriter};

const JSON_TIME: &str = "%Y-%m-%dT%H:%M:%S";
const COMBINED_TIME: &str = "%d/%b/%Y:%H:%M:%S +0000";
/// How many refusals of each client are logged in a second.
const LOGGED: u64 = 5;
/// How many clients are counted separately each second.
const MAX_CLIENTS: usize = 256;

/// Where lines go, and in which format. Without a format they belong to the log, which is in JSON if there is a writer.
#[derive(Clone, Debug)]
pub struct AccessLogOutput {
    pub writer: Option<LineWriter>,
    pub format: Option<AccessFormat>,
}

/// Writes the lines of one worker.
#[derive(Debug)]
pub struct AccessLogger {
    format: Option<AccessFormat>,
    /// `None` if lines are text, which the log writes one by one.
    lines: Option<LineBuffer>,
    time: RefCell<TimeText>,
}

impl AccessLogger {
    pub fn new(AccessLogOutput { writer, format }: AccessLogOutput) -> Self {
        let time = if format == Some(AccessFormat::Combined) { COMBINED_TIME } else { JSON_TIME };
        Self { format, lines: writer.map(LineBuffer::new), time: RefCell::new(TimeText::new(time)) }
    }

    /// Whether lines have a place for Referer and User-Agent.
    pub fn needs_headers(&self) -> bool {
        self.format == Some(AccessFormat::Combined)
    }

    /// Passes on lines as long as it is polled.
    pub async fn run(&self) {
        match &self.lines {
            Some(lines) => lines.run().await,
            None => std::future::pending().await,
        }
    }

    /// Passes on all lines now.
    pub fn flush(&self) {
        self.lines.iter().for_each(LineBuffer::flush);
    }

    pub(super) fn write(&self, line: &AccessLine<'_>) {
        let Some(lines) = &self.lines else { return tracing::info!("{line}") };
        // Lines without a format belong to the log, whose level may exclude requests.
        if self.format.is_none() && !tracing::enabled!(Level::INFO) {
            return;
        }
        let mut time = self.time.borrow_mut();
        match self.format {
            Some(AccessFormat::Combined) => lines.write(|text| line.combined(time.second(line.begun()), text)),
            _ => lines.write(|text| line.json(time.second(line.end.at), text)),
        }
    }
}

/// The text of the last second that a line has stated.
#[derive(Debug)]
struct TimeText {
    format: &'static str,
    /// Since the Unix epoch.
    second: u64,
    text: String,
}

impl TimeText {
    fn new(format: &'static str) -> Self {
        Self { format, second: u64::MAX, text: String::new() }
    }

    fn second(&mut self, time: Time) -> &str {
        if time.seconds() != self.second {
            self.second = time.seconds();
            self.text = time.timestamp().unwrap_or(jiff::Timestamp::MAX).strftime(self.format).to_string();
        }
        &self.text
    }
}

/// The refusals of this second on one worker.
#[derive(Debug, Default)]
pub struct Sampler {
    /// By the network of the client; `None` counts all clients beyond the first [`MAX_CLIENTS`].
    seen: RefCell<HashMap<Option<IpAddr>, u64, RandomState>>,
}

impl Sampler {
    /// Counts a refusal of this client. Returns whether it is logged.
    pub(super) fn admits(&self, client: IpAddr) -> bool {
        let mut seen = self.seen.borrow_mut();
        let client = Some(network_of(client));
        let has_own_count = seen.len() < MAX_CLIENTS || seen.contains_key(&client);
        let count = seen.entry(client.filter(|_| has_own_count)).or_default();
        *count += 1;
        *count <= LOGGED
    }

    /// Begins a new second, and logs how many refusals of the last one were left out.
    pub fn next_second(&self) {
        for (client, refusals) in self.left_out() {
            let client = match client {
                None => "others".to_owned(),
                Some(IpAddr::V4(address)) => address.to_string(),
                Some(IpAddr::V6(network)) => format!("{network}/64"),
            };
            tracing::info!(client, refusals, "further refusals, which are not logged one by one");
        }
    }

    fn left_out(&self) -> Vec<(Option<IpAddr>, u64)> {
        let mut seen = self.seen.borrow_mut();
        let left_out = seen.drain().filter(|(_, count)| *count > LOGGED);
        left_out.map(|(client, count)| (client, count - LOGGED)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_of_each_client_and_second_are_written() {
        let sampler = Sampler::default();
        let ask = |address: &str, count: u64| {
            let address = address.parse().unwrap();
            (0..count).filter(|_| sampler.admits(address)).count()
        };
        assert_eq!([ask("192.0.2.1", 3), ask("192.0.2.1", 4), ask("192.0.2.2", 5)], [3, 2, 5]);
        assert_eq!([ask("2001:db8::1", 5), ask("2001:db8::2", 5), ask("2001:db8:0:1::1", 5)], [5, 0, 5]);
        let mut left_out = sampler.left_out();
        left_out.sort_unstable_by_key(|(_, count)| *count);
        let left_out: Vec<_> = left_out.iter().map(|(client, count)| (client.unwrap().to_string(), *count)).collect();
        assert_eq!(left_out, [("192.0.2.1".to_owned(), 2), ("2001:db8::".to_owned(), 5)]);
        assert_eq!(ask("192.0.2.1", 9), 5, "another second");
    }

    #[test]
    fn however_many_clients_there_are_the_lines_are_bounded() {
        let sampler = Sampler::default();
        let mut written = 0;
        for _ in 0..10 {
            for client in 0..10_000_u32 {
                written += u64::from(sampler.admits(IpAddr::V4(client.into())));
            }
        }
        assert_eq!(written, (MAX_CLIENTS as u64 + 1) * LOGGED);
        let left_out = sampler.left_out();
        assert_eq!(left_out.len(), MAX_CLIENTS + 1);
        assert_eq!(left_out.iter().map(|(_, count)| count).sum::<u64>() + written, 100_000);
    }
}
