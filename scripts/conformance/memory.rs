//! The memory of processes on this machine.

use std::fs;
use std::io;

/// The resident bytes of these processes without files. What they share counts once.
pub(crate) fn resident(pids: &[u32]) -> io::Result<u64> {
    pids.iter().map(|pid| own(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?)).sum()
}

/// What Linux says of a process: of shared memory, its part.
fn own(text: &str) -> io::Result<u64> {
    let figure = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let kilobytes = figure("Pss_Anon:").zip(figure("Pss_Shmem:")).map(|(anonymous, shared)| anonymous + shared);
    kilobytes
        .map(|kilobytes| kilobytes * 1024)
        .ok_or_else(|| io::Error::other("smaps_rollup has no Pss_Anon and Pss_Shmem"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_memory_of_this_process_is_known() {
        let before = resident(&[std::process::id()]).unwrap();
        assert!((100_000..1 << 40).contains(&before), "{before}");
        assert_eq!(own("Pss:\t 300 kB\nPss_Anon:\t     104 kB\nPss_Shmem:    8 kB\n").unwrap(), 112 * 1024);
        assert!(own("Pss_Anon:\t     104 kB\n").is_err());
    }
}
