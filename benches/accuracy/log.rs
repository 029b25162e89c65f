//! Reads access logs: the client address and the time of each request.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use jiff::fmt::strtime;

/// By time in microseconds. A log has only seconds, so the requests of one second are spread evenly over it. Lines that
/// are not in the common format are skipped.
pub(crate) fn read(path: &Path) -> Vec<(String, u64)> {
    let file = BufReader::new(File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    let mut requests: Vec<_> = file.split(b'\n').map_while(Result::ok).filter_map(|line| request(&line)).collect();
    requests.sort_by_key(|(_, time)| *time);
    let mut start = 0;
    while start < requests.len() {
        let second = requests[start].1;
        let count = requests[start..].iter().take_while(|(_, time)| *time == second).count();
        for (place, (_, time)) in (0..).zip(&mut requests[start..start + count]) {
            *time += place * 1_000_000 / count as u64;
        }
        start += count;
    }
    requests
}

/// `192.0.2.7 - - [10/Oct/2025:13:55:36 +0000] "GET / HTTP/1.1" ...`
fn request(line: &[u8]) -> Option<(String, u64)> {
    let line = String::from_utf8_lossy(line);
    let client = line.split(' ').next()?.to_owned();
    let time = line.split_once('[')?.1.split_once(']')?.0;
    let time = strtime::parse("%d/%b/%Y:%H:%M:%S %z", time).ok()?.to_timestamp().ok()?;
    Some((client, u64::try_from(time.as_microsecond()).ok()?))
}
