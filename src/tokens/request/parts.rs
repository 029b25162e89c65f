//! Counts the parts of a request that are not text: pictures, sound, videos and files, by reference or in base64, and
//! references to earlier answers. Their size does not show what they cost.
//!
//! Parts are found by their names in the APIs, anywhere except in definitions of tools and in arguments of tool calls. Tools may
//! have lists of files.

use smallvec::SmallVec;

use super::base64::Base64;
use crate::base::json::Kind;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Role {
    #[default]
    Other,
    /// A part, or several parts in an array.
    Part,
    /// Like `Part`, but not directly in the body.
    InnerPart,
    /// Like `Part`, but only directly in the body.
    Reference,
    /// The identifier of a stored prompt; in other requests the prompt itself.
    Prompt,
    /// The data of a part, or where the data is.
    Data,
    /// The type of an object, a media type, or a status.
    Type,
    Id,
    /// The input of the Responses API: messages, and references to them.
    Input,
    /// Has no parts in it.
    Aside,
    /// Has no parts in it, except lists of files.
    Tools,
    Files,
    /// Members of any names, which are text: results of tools, and documents.
    Results,
}

impl Role {
    #[inline]
    fn of(name: &[u8]) -> Self {
        let known: &[(&str, Self)] = match name.len() {
            2 => &[("id", Self::Id)],
            3 => &[("url", Self::Data)],
            4 => &[("type", Self::Type), ("data", Self::Data), ("file", Self::InnerPart), ("args", Self::Aside)],
            5 => &[
                ("image", Self::Part),
                ("input", Self::Input),
                ("audio", Self::InnerPart),
                ("video", Self::InnerPart),
                ("tools", Self::Tools),
            ],
            6 => {
                &[("source", Self::InnerPart), ("images", Self::Part), ("status", Self::Type), ("prompt", Self::Prompt)]
            }
            7 => &[("file_id", Self::Part), ("outputs", Self::Results)],
            8 => &[
                ("file_ids", Self::Files),
                ("file_url", Self::Part),
                ("fileData", Self::Part),
                ("mimeType", Self::Type),
                ("metadata", Self::Aside),
                ("response", Self::Results),
            ],
            9 => &[
                ("image_url", Self::Part),
                ("video_url", Self::Part),
                ("audio_url", Self::Part),
                ("file_data", Self::Part),
                ("mime_type", Self::Type),
                ("arguments", Self::Aside),
                ("functions", Self::Aside),
                ("documents", Self::Results),
            ],
            10 => &[("inlineData", Self::Part), ("media_type", Self::Type), ("parameters", Self::Aside)],
            11 => &[("inline_data", Self::Part), ("input_audio", Self::Part), ("input_video", Self::Part)],
            12 => &[("conversation", Self::Reference), ("input_schema", Self::Aside), ("document_url", Self::Part)],
            13 => &[("cachedContent", Self::Reference)],
            14 => &[("cached_content", Self::Reference)],
            15 => &[("multimodal_data", Self::Part), ("response_format", Self::Aside)],
            20 => &[("previous_response_id", Self::Reference)],
            _ => return Self::Other,
        };
        let role = known.iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()));
        role.map_or(Self::Other, |(_, role)| *role)
    }
}

/// Counts the parts of one request. Its methods have to be called for everything that a reader of JSON reads.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) count: u64,
    /// How many bytes of the strings of parts are not text.
    pub(super) data: u64,
    /// The role of the next member.
    role: Role,
    /// The depth inside the value without parts; 0 outside such values.
    aside: u32,
    /// Whether these are tools, and the depth of the files in their last list of files.
    is_in_tools: bool,
    files: u32,
    /// The innermost part around the reader, and the parts around that.
    part: OpenPart,
    outer: Vec<OpenPart>,
    /// The depth of the members or items of the innermost part or value without parts.
    innermost: u32,
    string: PartString,
    /// The beginning of a type, as the string states it.
    kind: SmallVec<[u8; MAX_KIND]>,
    /// The item of `input` around the reader.
    item: Item,
    is_in_input: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct OpenPart {
    /// Bytes of strings that are data, unless the part is text; of results, the bytes of data before them.
    data: u64,
    /// The depth of its members or items; 0 outside of parts.
    depth: u32,
    /// How many arrays of a list its items are in. No more are open than [`MAX_DEPTH`](crate::base::json::MAX_DEPTH).
    nested: u16,
    form: PartForm,
    is_text: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum PartForm {
    #[default]
    Single,
    /// Several parts in an array.
    List,
    /// An object in a list. Replaces the list until the object ends.
    Item,
    /// No part. Parts in them count, but have no data.
    Results,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum PartString {
    #[default]
    Other,
    Type,
    Data(Base64),
    /// The beginning of a URL with data in it, of which this many bytes were read.
    Prefix(u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct Item {
    has_id: bool,
    has_others: bool,
    is_reference: bool,
}

impl Parts {
    /// A name at this depth of arrays and objects.
    #[inline]
    pub(super) fn name(&mut self, name: Option<&[u8]>, depth: u32) {
        self.role = name.map_or(Role::Other, Role::of);
        if depth == ITEM_DEPTH {
            self.item.has_id |= self.role == Role::Id;
            self.item.has_others |= !matches!(self.role, Role::Id | Role::Type);
        }
    }

    /// A value begins at this depth of arrays and objects.
    #[inline]
    pub(super) fn begin(&mut self, kind: Kind, depth: u32) {
        let role = std::mem::take(&mut self.role);
        if self.aside == 0 {
            if depth == self.part.depth && self.part.form == PartForm::List {
                self.begin_item(kind, depth);
            } else if role != Role::Other || depth == self.part.depth {
                self.begin_known(kind, role, depth);
            }
        } else if self.is_in_tools {
            self.count += u64::from(depth == self.files);
            if role == Role::Files && kind == Kind::Array {
                self.files = depth + 1;
            } else if depth < self.files {
                self.files = 0;
            }
        }
    }

    /// Whether this is the depth of what is directly in a part.
    #[inline]
    fn is_in_part(&self, depth: u32) -> bool {
        depth == self.part.depth && depth > 0 && self.part.form != PartForm::Results
    }

    #[inline(never)]
    fn begin_known(&mut self, kind: Kind, role: Role, depth: u32) {
        let is_in_part = self.is_in_part(depth);
        let is_part = match role {
            Role::Part | Role::Files => true,
            Role::InnerPart => depth > 1,
            Role::Reference => depth == 1,
            Role::Prompt => depth == 1 && kind == Kind::Object,
            _ => false,
        };
        if kind == Kind::String {
            self.string = match role {
                Role::Type => PartString::Type,
                _ if is_part || role == Role::Data && is_in_part => PartString::Data(Base64::default()),
                _ => PartString::Other,
            };
            self.kind.clear();
            self.count += u64::from(is_part && !is_in_part);
        } else if is_part {
            // What is directly in a part belongs to the part.
            self.count += u64::from(kind == Kind::Object && !is_in_part);
            self.outer.push(self.part);
            self.enter(if kind == Kind::Array { PartForm::List } else { PartForm::Single }, depth + 1);
        } else if role == Role::Results {
            self.outer.push(self.part);
            self.enter(PartForm::Results, depth + 1);
            self.part.data = self.data;
        } else if matches!(role, Role::Aside | Role::Tools) || role == Role::Input && depth > 1 {
            (self.aside, self.innermost) = (depth + 1, depth + 1);
            (self.is_in_tools, self.files) = (role == Role::Tools, 0);
        } else if role == Role::Input {
            (self.is_in_input, self.item) = (kind == Kind::Array, Item::default());
        }
    }

    /// An item of a list begins. Each is a part, or a list of parts.
    #[inline]
    fn begin_item(&mut self, kind: Kind, depth: u32) {
        self.count += u64::from(kind != Kind::Array);
        match kind {
            Kind::String => {
                self.string = PartString::Data(Base64::default());
                self.kind.clear();
            }
            Kind::Object => {
                self.data += self.part.data;
                let nested = self.part.nested;
                self.enter(PartForm::Item, depth + 1);
                self.part.nested = nested;
            }
            Kind::Array => {
                self.part.depth = depth + 1;
                self.part.nested += 1;
                self.innermost = depth + 1;
            }
        }
    }

    #[inline]
    fn enter(&mut self, form: PartForm, depth: u32) {
        self.innermost = depth;
        self.part = OpenPart { depth, form, ..OpenPart::default() };
    }

    #[inline]
    pub(super) fn text(&mut self, part: &[u8]) {
        if self.string != PartString::Other {
            self.known_text(part);
        }
    }

    #[inline(never)]
    fn known_text(&mut self, part: &[u8]) {
        match self.string {
            PartString::Other => {}
            PartString::Type => self.keep_kind(part),
            PartString::Data(Base64 { length: 0, .. }) if part.starts_with(b"data:") => self.prefix(0, part),
            PartString::Data(data) => self.data(data, part),
            PartString::Prefix(length) => self.prefix(length, part),
        }
    }

    /// Reads a part of `data:image/png;base64,` after `length` bytes, and perhaps of what follows the comma.
    fn prefix(&mut self, length: u64, part: &[u8]) {
        let end = part.iter().position(|byte| *byte == b',');
        self.keep_kind(&part[..end.unwrap_or(part.len())]);
        let read = length + part.len() as u64;
        self.string = match end {
            None if read > MAX_PREFIX => PartString::Other,
            None => PartString::Prefix(read),
            Some(_) if is_of_text(self.kind.strip_prefix(b"data:").unwrap_or_default()) => PartString::Other,
            Some(end) => return self.data(Base64::after(length + end as u64 + 1), &part[end + 1..]),
        };
    }

    fn data(&mut self, data: Base64, part: &[u8]) {
        self.string = data.and(part).map_or(PartString::Other, PartString::Data);
    }

    fn keep_kind(&mut self, part: &[u8]) {
        let room = MAX_KIND - self.kind.len();
        self.kind.extend_from_slice(&part[..room.min(part.len())]);
    }

    /// The innermost value ends, at this depth of arrays and objects.
    #[inline]
    pub(super) fn end(&mut self, kind: Kind, depth: u32) {
        if kind == Kind::String {
            if self.string != PartString::Other {
                self.end_string(depth);
            }
            return;
        }
        if depth + 1 == self.innermost {
            self.end_known();
        }
    }

    /// One of the outermost arrays or objects ends: it may be an item of `input`, or contain `input`.
    #[inline]
    pub(super) fn end_outer(&mut self, depth: u32) {
        if self.is_in_input {
            if depth + 1 == ITEM_DEPTH {
                let Item { has_id, has_others, is_reference } = std::mem::take(&mut self.item);
                self.count += u64::from(is_reference || has_id && !has_others);
            }
            self.is_in_input = depth > 1;
        }
    }

    /// A part ends, or a value without parts, in which nothing is recognized.
    #[inline(never)]
    fn end_known(&mut self) {
        if std::mem::take(&mut self.aside) == 0 {
            self.end_part();
        }
        self.innermost = self.part.depth;
    }

    #[inline]
    fn end_part(&mut self) {
        let OpenPart { depth, nested, form, data, is_text } = self.part;
        if form == PartForm::List && nested > 0 {
            (self.part.depth, self.part.nested) = (depth - 1, nested - 1);
            return;
        }
        match form {
            PartForm::Results => self.data = data,
            _ => self.data += if is_text { 0 } else { data },
        }
        self.part = match form {
            PartForm::Item => OpenPart { depth: depth - 1, nested, form: PartForm::List, ..OpenPart::default() },
            PartForm::Single | PartForm::List | PartForm::Results => self.outer.pop().unwrap_or_default(),
        };
    }

    #[inline(never)]
    fn end_string(&mut self, depth: u32) {
        let is_in_part = self.is_in_part(depth);
        match std::mem::take(&mut self.string) {
            PartString::Data(Base64 { length, .. }) if is_in_part => self.part.data += length,
            PartString::Data(Base64 { length, .. }) => self.data += length,
            PartString::Type => {
                self.item.is_reference |= depth == ITEM_DEPTH && *self.kind == *b"item_reference";
                self.part.is_text |= is_in_part && is_of_text(&self.kind);
            }
            _ => {}
        }
    }

    /// A number or another word.
    #[inline]
    pub(super) fn word(&mut self) {
        self.role = Role::Other;
    }
}

/// The depth of the members of an item of `input`.
const ITEM_DEPTH: u32 = 3;

const MAX_KIND: usize = 32;
/// The longest beginning of a URL before its data.
const MAX_PREFIX: u64 = 256;

/// Whether a media type, or an API's name for it, is text.
fn is_of_text(kind: &[u8]) -> bool {
    let kind = kind.trim_ascii_start().to_ascii_lowercase();
    let binary: [&[u8]; 4] = [b"image/", b"audio/", b"video/", b"application/pdf"];
    kind.starts_with(b"text") || kind.contains(&b'/') && !binary.iter().any(|binary| kind.starts_with(binary))
}

#[cfg(test)]
mod tests {
    use crate::tokens::request::{BodyPointers, InputSize, inspect};

    #[test]
    fn every_item_of_lists_in_lists_is_a_part() {
        for (body, parts, text) in [
            (r#"{"image": [[["AAAA"], "BBBB"], "CCCC", [], [[]]]}"#, 3, "image"),
            (r#"{"image": [["AAAA", {"x": "a picture"}, "BBBB"], 7, "CCCC"], "y": "AAAA"}"#, 4, "imagexa pictureyAAAA"),
            (r#"{"image": [[{"image": [["AAAA"], "BBBB"], "url": "CCCC"}, ["DDDD"]], "EEEE"]}"#, 5, "imageimageurl"),
            (
                r#"{"image": [[{"type": "text", "data": "AAAA"}, "BBBB"]], "z": ["CCCC"]}"#,
                2,
                "imagetypetextdataAAAAzCCCC",
            ),
        ] {
            let InputSize { text: counted, parts: found, .. } = inspect(body.as_bytes(), &BodyPointers::new(&[])).input;
            assert_eq!((found, counted), (parts, text.len() as u64), "{body}");
        }
    }
}
