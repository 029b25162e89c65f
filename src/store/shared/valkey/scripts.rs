//! What no single command of the server does: each script touches one key. If a command of it fails, what counts was not written:
//! that comes last.

pub(super) struct Script {
    pub(super) source: &'static str,
    /// By which the server knows it: the SHA-1 of its source in hexadecimal digits.
    pub(super) digest: &'static str,
}

/// Adds the amount, which may be negative, to a count, but never goes below zero or above what a script can count exactly: 2^53.
/// A count that is missing or no number becomes the second argument and lives for the third, in seconds, or stays as it is. What
/// follows the digits stays.
pub(super) const ADD: Script = Script {
    digest: "64809a02cb55db03c610ed37d47e6260d60438c2",
    source: "local v=redis.call('GET',KEYS[1])
local at=v and string.find(v,' ',1,true)
local n=v and tonumber(string.sub(v,1,(at or 0)-1))
if not n then
if not ARGV[2] then return false end
redis.call('SET',KEYS[1],ARGV[2],'EX',ARGV[3])
return tonumber(ARGV[2])
end
n=math.min(math.max(0,n+ARGV[1]),9007199254740992)
redis.call('SET',KEYS[1],string.format('%.0f',n)..(at and string.sub(v,at) or ''),'KEEPTTL')
return n",
};

/// Replaces a value that begins with the first argument, its mark and version, by the second, which lives for the third. What
/// is no value of ours, because it has no mark, version and number, is replaced, too.
pub(super) const REPLACE: Script = Script {
    digest: "d70cf40e210575e302172eae306eb97cb6f4d736",
    source: "local v=redis.call('GETRANGE',KEYS[1],0,12)
if v=='' and not redis.call('GET',KEYS[1]) then return false end
if #v==13 and string.sub(v,1,1)=='=' and string.sub(v,1,9)~=ARGV[1] then return 0 end
redis.call('SET',KEYS[1],ARGV[2],'EX',ARGV[3])
return 1",
};

/// Makes the first argument the mark and version of a value of ours, appends the second, and lets it live for the third.
pub(super) const APPEND: Script = Script {
    digest: "59a514a3f1322b059cb4fa5708a509a8ba4f5a30",
    source: "local v=redis.call('GETRANGE',KEYS[1],0,12)
if #v<13 or string.sub(v,1,1)~='=' then return false end
redis.call('EXPIRE',KEYS[1],ARGV[3])
redis.call('SETRANGE',KEYS[1],0,ARGV[1])
redis.call('APPEND',KEYS[1],ARGV[2])
return 1",
};

/// By which servers know the scripts that add to a count, replace a value, and append to one.
pub const DIGESTS: [&str; 3] = [ADD.digest, REPLACE.digest, APPEND.digest];

#[cfg(test)]
mod tests {
    use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

    use super::*;
    use crate::base::hex;

    #[test]
    fn digests_are_those_of_the_sources() {
        for Script { source, digest: known } in [ADD, REPLACE, APPEND] {
            assert_eq!(hex::text(digest(&SHA1_FOR_LEGACY_USE_ONLY, source.as_bytes()).as_ref()), known, "{source}");
        }
    }
}
