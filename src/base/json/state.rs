//! What a [`Reader`](super::Reader) expects next.

#[derive(Clone, Copy, Default, PartialEq)]
pub(super) enum State {
    /// A value must come.
    #[default]
    Value,
    /// A value, or the end of an array.
    FirstItem,
    /// A name, or the end of an object.
    FirstName,
    Name,
    Colon,
    /// A comma, or the end of an array.
    NextItem,
    /// A comma, or the end of an object.
    NextMember,
    /// Only white space may come.
    Done,
    /// Something else came after the value.
    Trailing,
    String,
    Escape,
    /// The digits of `\u0000`.
    Unicode,
    Word,
    Broken,
}
