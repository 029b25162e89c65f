//! Memcached's replies: any bytes are read as what they are, never past their end, and alike however they are cut.

#![no_main]
#![allow(dead_code, reason = "only the replies are read here")]

use libfuzzer_sys::fuzz_target;

#[path = "../../src/store/shared/protocol.rs"]
mod protocol;
/// The modules see each other as they do in the gateway.
#[path = "../../src/store/shared"]
mod memcached {
    #[path = "memcached/commands.rs"]
    mod commands;
    #[path = "memcached/replies.rs"]
    mod replies;

    use super::protocol::{Commands, Echo, Initial, Lifetime, Reader};

    /// What reads the replies to an exchange with a few commands of each kind.
    pub fn reader() -> Box<dyn Reader> {
        let mut commands = commands::TextCommands::default();
        let name = |name: &'static str| move |out: &mut Vec<u8>| out.extend_from_slice(name.as_bytes());
        let lifetime = Lifetime { seconds: 60, from: 0 };
        commands.add(&name("a"), 1, Some(Initial { count: 1, lifetime }), Echo::Quiet);
        commands.add(&name("b"), 1, None, Echo::Count);
        commands.append(&name("c"), b"more", lifetime);
        ["a", "b", "c", "d"].into_iter().for_each(|read| commands.read(&name(read)));
        commands.finish(&mut Vec::new())
    }
}

use memcached::reader;

fuzz_target!(|input: &[u8]| {
    let mut at_once = reader();
    let whole = at_once.read(input);
    // The same bytes, of which the first says in which pieces they arrive.
    let mut in_pieces = reader();
    let step = usize::from(input.first().copied().unwrap_or(0)) % 64 + 1;
    let ends = (0..input.len()).step_by(step).chain([input.len()]);
    let last = ends.map(|end| in_pieces.read(&input[..end])).find(|read| *read != Ok(None)).unwrap_or(Ok(None));
    assert_eq!(last, whole);
    let Ok(Some(length)) = whole else { return };
    assert!(length <= input.len());
    let (one, other) = (at_once.replies(input), in_pieces.replies(input));
    for place in 0..4 {
        let item = one.item(place);
        assert_eq!(item, other.item(place));
        let _ = item.map(|item| item.count());
    }
    (0..3).for_each(|tag| assert_eq!(one.written(tag), other.written(tag)));
    assert_eq!((one.is_read, one.is_failure, one.failure), (other.is_read, other.is_failure, other.failure));
});
