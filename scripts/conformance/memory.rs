//! The memory of processes on this machine.

use std::fs;
use std::io;

/// The resident bytes of these processes, without what they share with files.
pub(crate) fn resident(pids: &[u32]) -> io::Result<u64> {
    pids.iter().map(|pid| anonymous(&fs::read_to_string(format!("/proc/{pid}/status"))?)).sum()
}

fn anonymous(status: &str) -> io::Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes
        .map(|kilobytes| kilobytes * 1024)
        .ok_or_else(|| io::Error::other("the status of the process has no RssAnon"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_memory_of_this_process_is_known() {
        let before = resident(&[std::process::id()]).unwrap();
        assert!((100_000..1 << 40).contains(&before), "{before}");
        assert_eq!(anonymous("Name:\tx\nRssAnon:\t     104 kB\n").unwrap(), 104 * 1024);
        assert!(anonymous("Name:\tx\n").is_err());
    }
}
