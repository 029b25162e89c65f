//! `[decisions]`: where other proxies ask, and what they are answered.

use std::net::SocketAddr;
use std::ops::Range;

use super::tls;
use crate::config::read::Section;
use crate::config::settings::decisions;
use crate::config::{Decisions, values};

/// Reads the section. Its address and the place of that go to `bound`.
pub(super) fn read(section: Section<'_>, bound: &mut Vec<(SocketAddr, Range<usize>)>) -> Option<Decisions> {
    let field = section.required(&decisions::listen, "add its address: listen = \"127.0.0.1:9902\"");
    let listen = field.as_ref().and_then(|field| field.parse(values::socket));
    let tls = section.table(&decisions::tls).and_then(tls::read);
    let refused_status = section.read(&decisions::refused_status);
    section.close();
    let (listen, field) = (listen?, field?);
    bound.push((listen, field.span));
    Some(Decisions { listen, tls, refused_status })
}
