//! What no single command of the server does: each script touches one key, and is done in full or not at all.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::frames;
use crate::base::hex;

pub(super) struct Script {
    pub(super) source: &'static str,
    /// By which the server knows it: the SHA-1 of its source in hexadecimal digits.
    pub(super) digest: String,
    /// The words of a call before the key.
    called: Vec<u8>,
}

/// Adds the amount, which may be negative, to a count, but never goes below zero. A missing count becomes the second
/// argument and lives for the third, in seconds, or stays missing. What follows the digits stays.
pub(super) static ADD: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local v=redis.call('GET',KEYS[1])
if not v then
if not ARGV[2] then return false end
redis.call('SET',KEYS[1],ARGV[2],'EX',ARGV[3])
return tonumber(ARGV[2])
end
local at=string.find(v,' ',1,true)
local n=math.max(0,string.sub(v,1,(at or 0)-1)+ARGV[1])
redis.call('SET',KEYS[1],string.format('%.0f',n)..(at and string.sub(v,at) or ''),'KEEPTTL')
return n",
    )
});

/// Replaces a value that begins with the first argument by the second, which lives for the third. What is no value of ours
/// is replaced, too.
pub(super) static REPLACE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local v=redis.call('GETRANGE',KEYS[1],0,#ARGV[1]-1)
if v=='' then return false end
if v~=ARGV[1] and string.sub(v,1,1)=='=' then return 0 end
redis.call('SET',KEYS[1],ARGV[2],'EX',ARGV[3])
return 1",
    )
});

/// Makes the first argument the version of a value, appends the second, and lets it live for the third.
pub(super) static APPEND: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GETRANGE',KEYS[1],0,0)~='=' then return false end
redis.call('SETRANGE',KEYS[1],0,ARGV[1])
redis.call('APPEND',KEYS[1],ARGV[2])
redis.call('EXPIRE',KEYS[1],ARGV[3])
return 1",
    )
});

impl Script {
    fn new(source: &'static str) -> Self {
        let digits = hex::text(digest(&SHA1_FOR_LEGACY_USE_ONLY, source.as_bytes()).as_ref());
        let mut called = Vec::new();
        [b"EVALSHA", digits.as_bytes(), b"1"].into_iter().for_each(|word| frames::word(word, &mut called));
        Self { source, digest: digits, called }
    }

    /// Begins to call the script with this key and so many arguments, which must follow.
    pub(super) fn call(&self, key: &[u8], arguments: usize, out: &mut Vec<u8>) {
        frames::command(4 + arguments, out);
        out.extend_from_slice(&self.called);
        frames::word(key, out);
    }
}
