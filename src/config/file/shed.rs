//! `[server.shed]`: what is shed under overload.

use crate::config::Shed;
use crate::config::read::Section;
use crate::config::settings::shed;

/// Reads the section.
pub(super) fn read(section: Section<'_>) -> Shed {
    let field = section.field(&shed::cpu);
    if field.is_none() && section.field(&shed::latency).is_none() {
        let help = "add the wanted share of the processors, like cpu = 0.9, or the wanted time until a response, like \
                    latency = \"500ms\"";
        section.source.report(section.span.clone(), "[server.shed] has neither `cpu` nor `latency`", help);
    }
    let cpu = section.given(&shed::cpu);
    if let Some(field) = field.filter(|_| cpu == Some(0)) {
        field.report("`cpu = 0` would shed everything", "write a share above 0, like 0.9 for nine tenths");
    }
    let (latency, status) = (section.given(&shed::latency), section.read(&shed::status));
    section.close();
    Shed { cpu, latency, status }
}
