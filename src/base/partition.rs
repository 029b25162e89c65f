//! Partition keys: what clients are told about which counter a limit has used for them.
//!
//! A client sees from it which of its requests count together. Nobody can compute a client's key from it, not even by trying
//! all addresses: it depends on a secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::fingerprint::Fingerprint;
use super::hidden::Hidden;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionSecret(Hidden<[u8; 32]>);

impl PartitionSecret {
    pub fn new(secret: &str) -> Self {
        Self(Hidden(blake3::derive_key("gateway 2026 partition keys", secret.as_bytes())))
    }

    /// The partition key of a client's `key`: 9 bytes, which fill 12 digits of base64.
    pub fn partition_key(&self, key: Fingerprint) -> String {
        STANDARD.encode(&blake3::keyed_hash(&self.0.0, &key.to_bytes()).as_bytes()[..9])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_key_depends_on_the_key_and_the_secret() {
        let (one, other) = (PartitionSecret::new("one"), PartitionSecret::new("other"));
        let (alice, bob) = (Fingerprint::of(b"alice"), Fingerprint::of(b"bob"));
        let keys = [(one, alice), (one, bob), (other, alice)];
        let keys = keys.map(|(secret, key)| secret.partition_key(key));
        assert_eq!(keys[0], PartitionSecret::new("one").partition_key(alice));
        for (at, key) in keys.iter().enumerate() {
            assert!(key.len() == 12 && STANDARD.decode(key).unwrap().len() == 9, "{key}");
            assert!(!keys[..at].contains(key), "{keys:?}");
        }
        assert_eq!(format!("{one:?}"), "PartitionSecret(***)");
    }
}
