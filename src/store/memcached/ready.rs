//! Commands about counters, written but for the key. Until a bucket is over they are the same for every key of a limit,
//! so most of what is sent is copied from here.

/// The digits of a key, as they stand in the names of its counters.
pub(super) type Digits = [u8; 32];

/// The commands about the counters of one rate: those of a bucket are where the last bits of its number say, until
/// another bucket's take their place.
#[derive(Debug)]
pub(super) struct Ready(Box<[Option<Commands>]>);

/// The commands about the counters of one bucket.
#[derive(Debug)]
pub(super) struct Commands {
    pub(super) bucket: u64,
    /// Reads the counter, and sees whether there is one.
    pub(super) count: Command,
    pub(super) look: Command,
    /// Adds to it, and takes from it: the amounts are yet to follow.
    pub(super) add: Command,
    pub(super) subtract: Command,
}

/// A command without its key.
#[derive(Debug)]
pub(super) struct Command {
    bytes: Vec<u8>,
    /// Where the key is to stand.
    key: usize,
}

impl Ready {
    /// For a rate that counts in so many buckets at a time.
    pub(super) fn new(buckets: usize) -> Self {
        Self((0..buckets.next_power_of_two()).map(|_| None).collect())
    }

    /// The commands of this bucket, which `write` writes if they are not there.
    pub(super) fn of(&mut self, bucket: u64, write: impl FnOnce() -> Commands) -> &Commands {
        let last = self.0.len() as u64 - 1;
        let commands = &mut self.0[usize::try_from(bucket & last).unwrap_or(0)];
        if commands.as_ref().is_some_and(|commands| commands.bucket != bucket) {
            *commands = None;
        }
        commands.get_or_insert_with(write)
    }
}

impl Command {
    /// What `write` writes, which also says where the key is to stand.
    pub(super) fn new(write: impl FnOnce(&mut usize, &mut Vec<u8>)) -> Self {
        let mut command = Self { bytes: Vec::new(), key: 0 };
        write(&mut command.key, &mut command.bytes);
        command
    }

    /// Writes it for this key.
    pub(super) fn put(&self, key: &Digits, out: &mut Vec<u8>) {
        let (before, after) = self.bytes.split_at(self.key);
        out.extend_from_slice(before);
        out.extend_from_slice(key);
        out.extend_from_slice(after);
    }
}
