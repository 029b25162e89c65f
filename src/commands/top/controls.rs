//! What the user has chosen to see, and how keys change it. No key changes anything about the gateway.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A part of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Panel {
    Requests,
    Limits,
    Keys,
    Upstreams,
    Store,
    Reloads,
}

impl Panel {
    /// All of them, in the order in which Tab visits them.
    pub(super) const ALL: [Self; 6] =
        [Self::Requests, Self::Limits, Self::Keys, Self::Upstreams, Self::Store, Self::Reloads];
    /// Those that share one place where there is not enough room for each.
    pub(super) const SHARING: [Self; 3] = [Self::Upstreams, Self::Store, Self::Reloads];

    /// By what its rows can be ordered; the first is how they are at the beginning.
    pub(super) fn orders(self) -> &'static [&'static str] {
        match self {
            // The first is the order of the gateway.
            Self::Limits => &["refusals", "refused/s", "admitted/s", "name"],
            Self::Keys => &["refused", "requests"],
            Self::Upstreams => &["configuration", "requests", "failures", "latency"],
            Self::Requests | Self::Store | Self::Reloads => &[],
        }
    }
}

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    NextPanel,
    PreviousPanel,
    /// To another row, so many below; the view keeps it inside the list.
    Move(isize),
    Sort,
    Zoom,
    Help,
    Back,
}

/// The most rows that Home and End move over, more than any list has.
const FAR: isize = 1 << 30;

impl Action {
    /// What this key does; `None` if it does nothing.
    pub(super) fn of(key: KeyEvent) -> Option<Self> {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        Some(match key.code {
            KeyCode::Char('c' | 'd') if is_control => Self::Quit,
            KeyCode::Char('q' | 'Q') => Self::Quit,
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => Self::NextPanel,
            KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => Self::PreviousPanel,
            KeyCode::Down | KeyCode::Char('j') => Self::Move(1),
            KeyCode::Up | KeyCode::Char('k') => Self::Move(-1),
            KeyCode::PageDown | KeyCode::Char(' ') => Self::Move(10),
            KeyCode::PageUp => Self::Move(-10),
            KeyCode::End => Self::Move(FAR),
            KeyCode::Home => Self::Move(-FAR),
            KeyCode::Char('s') => Self::Sort,
            KeyCode::Enter => Self::Zoom,
            KeyCode::Char('?') | KeyCode::F(1) => Self::Help,
            KeyCode::Esc => Self::Back,
            _ => return None,
        })
    }
}

/// What the user has chosen so far.
#[derive(Debug)]
pub(super) struct Controls {
    /// The panel that keys are for.
    pub(super) focus: Panel,
    /// Which panel is shown of those that share a place.
    pub(super) shared: Panel,
    /// Whether the panel has all of the screen.
    pub(super) is_zoomed: bool,
    /// Whether the keys are explained.
    pub(super) shows_help: bool,
    /// The limit whose keys are shown; the first one if there is no such limit.
    pub(super) limit: Option<String>,
    /// By how many rows the limit is to change at the next drawing.
    pub(super) moved: isize,
    /// The first row that is shown of each panel, by its place in [`Panel::ALL`].
    scrolled: [usize; Panel::ALL.len()],
    /// The order of each panel's rows.
    orders: [usize; Panel::ALL.len()],
}

impl Controls {
    /// Everything is shown, and the limits have the focus.
    pub(super) fn new() -> Self {
        Self {
            focus: Panel::Limits,
            shared: Panel::Upstreams,
            is_zoomed: false,
            shows_help: false,
            limit: None,
            moved: 0,
            scrolled: [0; Panel::ALL.len()],
            orders: [0; Panel::ALL.len()],
        }
    }

    /// Does what a key asks for, except to quit.
    pub(super) fn apply(&mut self, action: Action) {
        match action {
            Action::Quit => {}
            Action::NextPanel => self.move_focus(1),
            Action::PreviousPanel => self.move_focus(Panel::ALL.len() - 1),
            // Keys belong to a limit, so that both lists begin anew when there is another one.
            Action::Move(rows) if self.focus == Panel::Limits => {
                self.moved = self.moved.saturating_add(rows);
                self.scrolled[Panel::Keys as usize] = 0;
            }
            Action::Move(rows) => {
                let scrolled = &mut self.scrolled[self.focus as usize];
                *scrolled = scrolled.saturating_add_signed(rows);
            }
            Action::Sort => {
                let orders = self.focus.orders().len();
                let order = &mut self.orders[self.focus as usize];
                *order = (*order + 1) % orders.max(1);
            }
            Action::Zoom => self.is_zoomed = !self.is_zoomed,
            Action::Help => self.shows_help = !self.shows_help,
            Action::Back if self.shows_help => self.shows_help = false,
            Action::Back => self.is_zoomed = false,
        }
    }

    fn move_focus(&mut self, by: usize) {
        self.focus = Panel::ALL[(self.focus as usize + by) % Panel::ALL.len()];
        if Panel::SHARING.contains(&self.focus) {
            self.shared = self.focus;
        }
    }

    /// By what the rows of a panel are ordered; `None` if they cannot be.
    pub(super) fn order(&self, panel: Panel) -> Option<&'static str> {
        panel.orders().get(self.orders[panel as usize]).copied()
    }

    /// The first row to show of a panel with so many `rows`, of which `room` fit.
    pub(super) fn first_row(&mut self, panel: Panel, rows: usize, room: usize) -> usize {
        let scrolled = &mut self.scrolled[panel as usize];
        *scrolled = (*scrolled).min(rows.saturating_sub(room));
        *scrolled
    }

    /// The same where the row `chosen` has to be among them.
    pub(super) fn first_row_with(&mut self, panel: Panel, rows: usize, room: usize, chosen: usize) -> usize {
        let first = self.first_row(panel, rows, room);
        let first = first.min(chosen).max((chosen + 1).saturating_sub(room));
        self.scrolled[panel as usize] = first;
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(controls: &mut Controls, codes: &[KeyCode]) {
        for code in codes {
            controls.apply(Action::of(KeyEvent::from(*code)).unwrap());
        }
    }

    #[test]
    fn keys_have_their_actions() {
        let control = |code| Action::of(KeyEvent::new(KeyCode::Char(code), KeyModifiers::CONTROL));
        assert_eq!((control('c'), Action::of(KeyCode::Char('q').into())), (Some(Action::Quit), Some(Action::Quit)));
        assert_eq!((control('x'), Action::of(KeyCode::Char('c').into())), (None, None));
        assert_eq!(Action::of(KeyCode::Tab.into()), Some(Action::NextPanel));
    }

    #[test]
    fn tab_visits_all_panels_and_shows_those_that_share_a_place() {
        let mut controls = Controls::new();
        let mut visited = Vec::new();
        for _ in Panel::ALL {
            press(&mut controls, &[KeyCode::Tab]);
            visited.push(controls.focus);
            if Panel::SHARING.contains(&controls.focus) {
                assert_eq!(controls.shared, controls.focus);
            }
        }
        assert_eq!((visited[0], visited[5]), (Panel::Keys, Panel::Limits));
        press(&mut controls, &[KeyCode::BackTab]);
        assert_eq!((controls.focus, controls.shared), (Panel::Requests, Panel::Reloads));
    }

    #[test]
    fn rows_stay_inside_their_list() {
        let mut controls = Controls::new();
        controls.focus = Panel::Reloads;
        press(&mut controls, &[KeyCode::End]);
        assert_eq!(controls.first_row(Panel::Reloads, 10, 4), 6);
        press(&mut controls, &[KeyCode::Up]);
        assert_eq!(controls.first_row(Panel::Reloads, 10, 4), 5);
        assert_eq!(controls.first_row(Panel::Reloads, 2, 4), 0);
        press(&mut controls, &[KeyCode::Home, KeyCode::Home]);
        assert_eq!(controls.first_row(Panel::Reloads, 10, 4), 0);
        assert_eq!(controls.first_row_with(Panel::Limits, 10, 3, 7), 5);
        assert_eq!(controls.first_row_with(Panel::Limits, 10, 3, 6), 5);
        assert_eq!(controls.first_row_with(Panel::Limits, 10, 3, 0), 0);
        assert_eq!(controls.first_row_with(Panel::Limits, 10, 0, 4), 5, "nothing fits, and nothing breaks");
    }

    #[test]
    fn orders_and_zoom_go_round() {
        let mut controls = Controls::new();
        assert_eq!(controls.order(Panel::Limits), Some("refusals"));
        press(&mut controls, &[KeyCode::Char('s')]);
        assert_eq!((controls.order(Panel::Limits), controls.order(Panel::Keys)), (Some("refused/s"), Some("refused")));
        press(&mut controls, &[KeyCode::Char('s'); 3]);
        assert_eq!(controls.order(Panel::Limits), Some("refusals"));
        controls.focus = Panel::Store;
        press(&mut controls, &[KeyCode::Char('s'), KeyCode::Enter, KeyCode::Char('?')]);
        assert!(controls.is_zoomed && controls.shows_help && controls.order(Panel::Store).is_none());
        press(&mut controls, &[KeyCode::Esc]);
        assert!(controls.is_zoomed && !controls.shows_help);
        press(&mut controls, &[KeyCode::Esc]);
        assert!(!controls.is_zoomed);
    }
}
