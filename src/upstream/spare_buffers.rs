//! The buffers of connections that wait. A connection has buffers only while they are not empty: it takes those of its worker,
//! and gives them back. So idle connections take no memory for buffers, and used buffers stay in the processor's cache.

use std::cell::{RefCell, RefMut};

use bytes::BytesMut;

/// Enough for a head and a small body, in bytes.
pub(super) const SMALL: usize = 8 * 1024;

/// The unused buffers of one worker: one of each kind, since most requests give theirs back before the next one needs them.
#[derive(Debug, Default)]
pub(super) struct SpareBuffers {
    received: RefCell<BytesMut>,
    sending: RefCell<Vec<u8>>,
}

impl SpareBuffers {
    /// An empty buffer with room for received bytes. A caller that has received some takes it.
    pub(super) fn received(&self) -> RefMut<'_, BytesMut> {
        let mut buffer = self.received.borrow_mut();
        buffer.reserve(SMALL);
        buffer
    }

    /// `buffer` must be empty.
    pub(super) fn put_received(&self, mut buffer: BytesMut) {
        // If parts of it were passed on and are still in use, others would keep its memory, too.
        if buffer.capacity() <= SMALL && buffer.try_reclaim(SMALL) {
            self.received.replace(buffer);
        }
    }

    pub(super) fn take_sending(&self) -> Vec<u8> {
        self.sending.take()
    }

    /// Takes back a buffer, from which all was sent or nothing more will be.
    pub(super) fn put_sending(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.sending.replace(buffer);
    }
}

#[cfg(test)]
mod tests {
    use std::mem;

    use bytes::Bytes;

    use super::*;

    fn receive(spare: &SpareBuffers) -> (BytesMut, Bytes) {
        let mut buffer = mem::take(&mut *spare.received());
        buffer.extend_from_slice(b"head");
        let head = buffer.split().freeze();
        (buffer, head)
    }

    #[test]
    fn a_buffer_is_used_again_unless_a_part_of_it_is_still_in_use() {
        let spare = SpareBuffers::default();
        let kept = || spare.received.borrow().capacity();
        let (buffer, head) = receive(&spare);
        spare.put_received(buffer);
        assert_eq!((&head[..], kept()), (&b"head"[..], 0));
        let (buffer, head) = receive(&spare);
        drop(head);
        spare.put_received(buffer);
        assert_eq!(kept(), SMALL);
    }

    #[test]
    fn a_large_buffer_is_not_kept() {
        let spare = SpareBuffers::default();
        spare.put_received(BytesMut::with_capacity(8 * SMALL));
        assert_eq!(spare.received.borrow().capacity(), 0);
    }

    #[test]
    fn nothing_stays_in_a_buffer_for_sending() {
        let spare = SpareBuffers::default();
        spare.put_sending(b"of another request".to_vec());
        let buffer = spare.take_sending();
        assert!(buffer.is_empty() && buffer.capacity() > 0);
    }
}
