//! JSON pointers (RFC 6901), and a search for the targets of several pointers while a document is read.
//!
//! Servers differ in which members they consider the same. Some compare names without regard to case, as Go's `encoding/json`
//! does, for which `K` (U+212A) is a `k`. So names are compared like that, and repeated members can be noticed.

use std::fmt;
use std::str::FromStr;

use smallvec::SmallVec;

use crate::base::json::{Kind, MAX_NAME};
use crate::base::letter_case::without_case;

/// The longest name in a pointer, in bytes. A name that differs only in case can be three times as long.
const MAX_TOKEN: usize = MAX_NAME / 3;

/// A place in a JSON document, such as `/usage/0/input`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer(Box<str>);

impl Pointer {
    fn tokens(&self) -> impl Iterator<Item = String> {
        self.0.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~"))
    }
}

impl FromStr for Pointer {
    /// For people.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.is_empty() && !text.starts_with('/') {
            return Err("it does not begin with `/`, as in `/model`".to_owned());
        }
        if text.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
            return Err("in it `~` is written as `~0`, and a `/` that is part of a name as `~1`".to_owned());
        }
        let pointer = Self(text.into());
        let too_long = pointer.tokens().find(|token| token.len() > MAX_TOKEN);
        too_long.map_or(Ok(pointer), |name| Err(format!("the name `{name}` is longer than {MAX_TOKEN} bytes")))
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Several pointers, as a tree of the places on the way to their targets.
#[derive(Debug)]
pub struct Pointers {
    /// The first one is the document.
    pub(super) places: Vec<Place>,
    /// For each pointer, in the given order, the index of its target in `places`.
    pub(super) ends: Vec<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Place {
    /// `None` for the document.
    parent: Option<usize>,
    /// The folded name.
    name: String,
    /// The name as an index in an array, if it is one.
    index: Option<usize>,
    /// The places of its members, by the length of their names in bytes.
    members: Vec<Vec<usize>>,
    /// Whether one of the names has letters beyond ASCII.
    has_other_letters: bool,
    /// Those members that may also be items of an array.
    items: Vec<usize>,
}

impl Pointers {
    pub fn new<'a>(pointers: impl IntoIterator<Item = &'a Pointer>) -> Self {
        let mut places = vec![Place::default()];
        let mut place = |parent: usize, token: &str| {
            let name: String = chars(token.as_bytes()).map(without_case).collect();
            let mut members = places[parent].members.iter().flatten().copied();
            let found = members.find(|member| places[*member].name == name);
            found.unwrap_or_else(|| {
                let is_index = token == "0" || !token.starts_with(['0', '+']);
                let (place, index) = (places.len(), token.parse().ok().filter(|_| is_index));
                let Place { members, has_other_letters, items, .. } = &mut places[parent];
                members.resize(members.len().max(name.len() + 1), Vec::new());
                members[name.len()].push(place);
                *has_other_letters |= !name.is_ascii();
                items.extend(index.map(|_| place));
                places.push(Place { parent: Some(parent), name, index, ..Place::default() });
                place
            })
        };
        let ends =
            pointers.into_iter().map(|pointer| pointer.tokens().fold(0, |at, token| place(at, &token))).collect();
        Self { places, ends }
    }

    /// This place, and all places around it.
    pub fn way(&self, place: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(place), |place| self.places[*place].parent)
    }

    #[inline]
    fn member(&self, parent: usize, name: &[u8]) -> Option<usize> {
        let parent = &self.places[parent];
        if name.is_ascii() { self.folded_member(parent, name) } else { self.other_member(parent, name) }
    }

    /// Finds a member by a name that is folded, except for the case of ASCII letters.
    #[inline]
    fn folded_member(&self, parent: &Place, name: &[u8]) -> Option<usize> {
        let mut members = parent.members.get(name.len())?.iter().copied();
        members.find(|member| self.places[*member].name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Finds a member by a name that is not ASCII. The name is folded once, and only as far as members begin with it.
    fn other_member(&self, parent: &Place, name: &[u8]) -> Option<usize> {
        if !parent.has_other_letters {
            return self.folded_member(parent, folded_to_ascii(name, &mut [0; MAX_TOKEN])?);
        }
        if let member @ Some(_) = self.folded_member(parent, name) {
            return member;
        }
        let mut start = SmallVec::<[u8; 0x100]>::new();
        for char in chars(name).map(without_case) {
            start.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
            let mut longer = parent.members.iter().skip(start.len()).flatten();
            if !longer.any(|member| self.places[*member].name.as_bytes().starts_with(&start)) {
                return None;
            }
        }
        self.folded_member(parent, &start)
    }

    /// Whether places are in this array or object.
    fn leads_on(&self, place: usize, kind: Kind) -> bool {
        let Place { members, items, .. } = &self.places[place];
        if kind == Kind::Array { !items.is_empty() } else { !members.is_empty() }
    }

    /// Whether a pointer leads to an item of the document itself, which is an array then.
    pub fn reads_items(&self) -> bool {
        self.places.first().is_some_and(|document| !document.items.is_empty())
    }

    #[inline]
    fn item(&self, parent: usize, index: usize) -> Option<usize> {
        let items = &self.places[parent].items;
        items.iter().copied().find(|item| self.places[*item].index == Some(index))
    }
}

/// The ASCII letter that the first letter of a name equals without regard to case, and the UTF-8 length of that letter.
fn in_ascii(name: &[u8]) -> Option<(u8, usize)> {
    match name {
        // ſ, ı and the Kelvin sign.
        [0xc5, 0xbf, ..] => Some((b's', 2)),
        [0xc4, 0xb1, ..] => Some((b'i', 2)),
        [0xe2, 0x84, 0xaa, ..] => Some((b'k', 3)),
        _ => None,
    }
}

/// The name, folded except for the case of ASCII letters. `None` if it has a letter that does not fold to ASCII.
fn folded_to_ascii<'r>(mut name: &[u8], room: &'r mut [u8; MAX_TOKEN]) -> Option<&'r [u8]> {
    let mut length = 0;
    while let [first, ..] = name {
        let (letter, taken) = if first.is_ascii() { (*first, 1) } else { in_ascii(name)? };
        *room.get_mut(length)? = letter;
        (length, name) = (length + 1, &name[taken..]);
    }
    Some(&room[..length])
}

fn chars(name: &[u8]) -> impl Iterator<Item = char> {
    name.utf8_chunks().flat_map(|chunk| {
        chunk.valid().chars().chain((!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER))
    })
}

/// Follows a reader through a document, as far as pointers need it. Its methods have to be called for all names and values.
#[derive(Debug, Default)]
pub struct Follower {
    /// The innermost array or object that leads to places.
    innermost: Inside,
    /// The arrays and objects around `innermost`.
    outer: SmallVec<[Inside; 4]>,
    /// How many arrays and objects around the reader lead to places, and how many there are in total.
    leading: u32,
    pub(super) depth: u32,
    /// The place of the next member.
    pub(super) member: Option<usize>,
    /// Whether the items of an outermost array are documents of their own, and the depth of the documents: 1 if they are items.
    divides: bool,
    base: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Inside {
    place: usize,
    /// In an array, the index of its next item.
    next_item: Option<usize>,
}

impl Follower {
    /// With `divides`, follows pointers into each item if the outermost value is an array.
    pub fn new(divides: bool) -> Self {
        Self { divides, ..Self::default() }
    }

    /// Whether the outermost value is an array whose items are documents of their own.
    #[inline]
    pub fn is_divided(&self) -> bool {
        self.base > 0
    }

    /// Nothing else in the outermost array leads to places.
    #[inline]
    pub fn follow_no_more(&mut self) {
        self.leading = 0;
    }

    /// Whether the reader is in something that leads to no place.
    #[inline]
    fn is_aside(&self) -> bool {
        self.depth > self.leading
    }

    #[inline]
    pub fn name(&mut self, pointers: &Pointers, name: Option<&[u8]>) {
        if let (false, Some(name)) = (self.is_aside(), name) {
            self.member = pointers.member(self.innermost.place, name);
        }
    }

    /// A number or another word begins. Returns its place.
    #[inline]
    pub fn value(&mut self, pointers: &Pointers) -> Option<usize> {
        match self.innermost.next_item {
            _ if self.is_aside() => None,
            None if self.depth == self.base => Some(0),
            None => self.member.take(),
            Some(next) => self.item(pointers, next),
        }
    }

    #[inline(never)]
    fn item(&mut self, pointers: &Pointers, next: usize) -> Option<usize> {
        self.innermost.next_item = Some(next + 1);
        pointers.item(self.innermost.place, next)
    }

    /// A string, array or object begins. Returns its place.
    #[inline]
    pub fn begin(&mut self, pointers: &Pointers, kind: Kind) -> Option<usize> {
        let place = self.value(pointers);
        if kind != Kind::String {
            if self.divides && self.depth == 0 && kind == Kind::Array {
                (self.base, self.leading) = (1, 1);
            } else if let Some(place) = place.filter(|place| pointers.leads_on(*place, kind)) {
                self.enter(place, kind);
            }
            self.depth += 1;
        }
        place
    }

    #[inline(never)]
    fn enter(&mut self, place: usize, kind: Kind) {
        self.leading += 1;
        self.outer.push(self.innermost);
        self.innermost = Inside { place, next_item: (kind == Kind::Array).then_some(0) };
    }

    #[inline]
    pub fn end(&mut self, kind: Kind) {
        if kind != Kind::String {
            if !self.is_aside() {
                self.leave();
            }
            self.depth -= 1;
        }
    }

    #[inline(never)]
    fn leave(&mut self) {
        self.leading -= 1;
        self.innermost = self.outer.pop().unwrap_or_default();
    }

    pub fn reset(&mut self) {
        self.outer.clear();
        (self.innermost, self.leading, self.depth, self.member) = (Inside::default(), 0, 0, None);
        self.base = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::base::json::{Reader, Visit};

    #[test]
    fn a_pointer_is_read_and_written() {
        for text in ["", "/", "/model", "/a/0/b", "/a~1b/~0", "//", "/~01"] {
            assert_eq!(text.parse::<Pointer>().unwrap().to_string(), text);
        }
        let tokens = |text: &str| text.parse::<Pointer>().unwrap().tokens().collect::<Vec<_>>();
        assert_eq!(tokens("/a~1b/~01//"), ["a/b", "~1", "", ""]);
        assert_eq!(tokens(""), [] as [&str; 0]);
        for (text, why) in [("model", "it does not begin"), ("/a~", "in it `~` is"), ("/~2", "in it `~` is")] {
            assert!(text.parse::<Pointer>().is_err_and(|error| error.starts_with(why)), "{text}");
        }
        assert!(
            "/a/".parse::<Pointer>().is_ok_and(|_| format!("/{}", "n".repeat(MAX_TOKEN)).parse::<Pointer>().is_ok())
        );
        let long = "n".repeat(MAX_TOKEN + 1);
        let error = format!("the name `{long}` is longer than 64 bytes");
        assert_eq!(format!("/a/{long}").parse::<Pointer>(), Err(error));
    }

    /// The words at the targets of pointers.
    struct Found {
        pointers: Pointers,
        follower: Follower,
        words: Vec<(usize, String)>,
    }

    impl Visit for Found {
        fn name(&mut self, name: Option<&[u8]>, _: usize) {
            self.follower.name(&self.pointers, name);
        }

        fn begin(&mut self, kind: Kind, _: usize) {
            self.follower.begin(&self.pointers, kind);
        }

        fn text(&mut self, _: &[u8]) {}

        fn end(&mut self, kind: Kind, _: usize) {
            self.follower.end(kind);
        }

        fn word(&mut self, word: Option<&[u8]>, _: Range<usize>) {
            let place = self.follower.value(&self.pointers);
            let pointer = self.pointers.ends.iter().position(|end| Some(*end) == place);
            let word = String::from_utf8_lossy(word.unwrap_or_default()).into_owned();
            self.words.extend(pointer.map(|pointer| (pointer, word)));
        }
    }

    #[track_caller]
    fn check(pointers: &[&str], text: &str, words: &[(usize, &str)]) {
        let pointers: Vec<Pointer> = pointers.iter().map(|text| text.parse().unwrap()).collect();
        let mut found = Found { pointers: Pointers::new(&pointers), follower: Follower::default(), words: Vec::new() };
        let mut reader = Reader::default();
        reader.read(text.as_bytes(), &mut found);
        assert!(reader.finish(&mut found), "{text}");
        let expected: Vec<_> = words.iter().map(|(pointer, word)| (*pointer, (*word).to_owned())).collect();
        assert_eq!(found.words, expected, "{text}");
        assert!(found.follower.outer.is_empty() && found.follower.depth == 0);
    }

    #[test]
    fn finds_places() {
        check(&[""], "7", &[(0, "7")]);
        check(&["/a"], r#"{"b":{"a":1},"c":[{"a":2}],"a":3,"d":"a"}"#, &[(0, "3")]);
        check(&["/a/b", "/a/c", "/d"], r#"{"a":{"c":1,"x":{"b":2},"b":3},"d":4}"#, &[(1, "1"), (0, "3"), (2, "4")]);
        check(&["/a/1/b"], r#"{"a":[{"b":1},{"b":2},{"b":3}]}"#, &[(0, "2")]);
        check(&["/1"], r#"[[0,9],1,"x",3]"#, &[(0, "1")]);
        check(&["/01", "/-", "/+1"], "[0,1,2]", &[]);
        check(&["/0"], r#"{"0":1}"#, &[(0, "1")]);
        check(&["/"], r#"{"":1}"#, &[(0, "1")]);
        check(&["/a~1b"], r#"{"a/b":1,"a":{"b":2}}"#, &[(0, "1")]);
    }

    #[test]
    fn names_are_the_same_under_all_spellings() {
        check(
            &["/mask"],
            r#"{"MASK":1,"mas\u212a":2,"ma\u017Fk":3,"maK":4,"masks":5,"mas":6,"m\u0061ſK":7}"#,
            &[(0, "1"), (0, "2"), (0, "3"), (0, "7")],
        );
        check(&["/Größe"], r#"{"GRÖSSE":1,"grÖße":2,"grosse":3}"#, &[(0, "2")]);
    }

    #[test]
    fn few_letters_are_folded_to_ascii() {
        for char in '\u{80}'..=char::MAX {
            let folded = without_case(char);
            let mut room = [0; MAX_TOKEN];
            let ascii = folded_to_ascii(char.to_string().as_bytes(), &mut room).map(<[u8]>::to_vec);
            assert_eq!(ascii, folded.is_ascii().then(|| vec![u8::try_from(folded).unwrap()]), "{char}");
        }
    }

    #[test]
    fn no_spelling_is_too_long() {
        let name = "s".repeat(MAX_TOKEN);
        check(
            &[&format!("/{name}")],
            &format!(r#"{{"{}":1}}"#, name.replace('s', "\\u212a").replace("212a", "017f")),
            &[(0, "1")],
        );
        let name = "k".repeat(MAX_TOKEN);
        check(&[&format!("/{name}")], &format!(r#"{{"{}":1}}"#, "\u{212a}".repeat(MAX_TOKEN)), &[(0, "1")]);
    }
}
