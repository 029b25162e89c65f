//! Memory is bounded whatever clients send, and the metrics show how much is used.

use std::thread;

use crate::harness::{Gateway, limited};

#[test]
fn many_keys_with_large_windows_stay_within_max_memory() {
    const ROOM: u32 = 8 << 20;
    let store = "[store]\nmax_memory = \"8MiB\"\n";
    // Each cell stores every request, so many keys with few requests use all the allowed memory.
    let limit = limited("header:a", "10000/d", "strategy = \"moving-window\"");
    let gateway = Gateway::with_log("access = false", &format!("{store}{limit}"));
    let before = gateway.memory("VmRSS");
    thread::scope(|scope| {
        for part in 0..4 {
            let mut client = gateway.client();
            scope.spawn(move || {
                for key in 0..10_000 {
                    assert_eq!(client.get_with("/", format!("A: {part}-{key}\r\n")).status, 200);
                }
            });
        }
    });
    let taken = gateway.metric("gateway_store_bytes").unwrap();
    assert!((f64::from(ROOM) * 0.8..=f64::from(ROOM)).contains(&taken), "{taken}");
    let (keys, evicted) = (gateway.metric("gateway_store_keys"), gateway.metric("gateway_store_evictions_total"));
    assert!((keys.unwrap() + evicted.unwrap() - 40_000.0).abs() < 0.5, "{keys:?} stay, {evicted:?} went");
    let grown = gateway.memory("VmRSS").saturating_sub(before);
    assert!(grown < u64::from(ROOM) * 2, "{grown} bytes more are resident");
}
