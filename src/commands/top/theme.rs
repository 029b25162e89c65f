//! How things look, with and without colours. What a colour means is always said in words, too.

use ratatui::style::{Color, Modifier, Style};

use crate::admin::outcome_groups::ByGroup;

/// The styles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    has_colours: bool,
}

impl Theme {
    /// With or without colours.
    pub(super) fn new(has_colours: bool) -> Self {
        Self { has_colours }
    }

    /// As the environment wants it: no colours if `NO_COLOR` is there and not empty (<https://no-color.org/>).
    pub(super) fn of_environment() -> Self {
        Self::new(std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
    }

    fn colour(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    /// What is less important.
    pub(super) fn soft(self) -> Style {
        if self.has_colours { Style::new().fg(Color::DarkGray) } else { Style::new().add_modifier(Modifier::DIM) }
    }

    /// What is old: in place of any other style.
    pub(super) fn old(self) -> Style {
        self.soft().remove_modifier(Modifier::BOLD | Modifier::REVERSED)
    }

    /// The headings of columns.
    pub(super) fn heading(self) -> Style {
        self.soft()
    }

    /// What is well.
    pub(super) fn good(self) -> Style {
        self.colour(Color::Green)
    }

    /// What somebody should look at.
    pub(super) fn bad(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// What is refused.
    pub(super) fn refused(self) -> Style {
        self.colour(Color::Yellow)
    }

    /// The panel that keys are for.
    pub(super) fn focus(self) -> Style {
        self.colour(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// A row that is chosen.
    pub(super) fn chosen() -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// The groups of requests.
    pub(super) fn groups(self) -> ByGroup<Style> {
        [self.good(), self.refused(), self.colour(Color::Magenta), self.colour(Color::Red), self.colour(Color::Blue)]
    }
}
