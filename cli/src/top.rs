// SPDX-License-Identifier: MIT OR Apache-2.0

//! `slock top`: what is shown of the frames, and what each key of the keyboard does.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table, TableState};
use ratatui::{DefaultTerminal, Frame as Screen};
use serde_json::Value as Json;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use crate::address::Place;
use crate::failure::Failure;
use crate::sample::{Frame, Lock, Sampler};
use crate::signals::Signals;
use crate::table::{clean, duration, milliseconds, owner};

const BETWEEN_FRAMES: Duration = Duration::from_secs(1);
const HISTORY: usize = 300;
/// From this width on a table has all its columns.
const WIDE: u16 = 70;

pub async fn top(place: Place, no_color: bool) -> Result<u8, Failure> {
    let no_color = no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let no_terminal = |error: std::io::Error| Failure::usage(format!("slock top needs a terminal: {error}"));
    let mut signals = Signals::ending().map_err(no_terminal)?;
    let mut view = View::new(place.shown.clone(), no_color);
    let (open, opened) = watch::channel(None);
    if !std::io::stdout().is_terminal() {
        return Err(no_terminal(std::io::ErrorKind::NotConnected.into()));
    }
    let mut terminal = ratatui::try_init().map_err(no_terminal)?;
    let mut frames = frames(Sampler::new(place), opened);
    let mut events = keyboard();
    let result = loop {
        if let Err(error) = draw(&mut terminal, &mut view) {
            break Err(no_terminal(error));
        }
        tokio::select! {
            Some(frame) = frames.recv() => view.show(frame),
            Some(event) = events.recv() => {
                if let Event::Key(key) = event
                    && key.kind != KeyEventKind::Release
                    && view.press(key)
                {
                    break Ok(0);
                }
                open.send_if_modified(|open| {
                    let is_new = *open != view.opened;
                    *open = view.opened.clone();
                    is_new
                });
            }
            _ = signals.next() => break Ok(0),
        }
    };
    ratatui::restore();
    result
}

fn draw(terminal: &mut DefaultTerminal, view: &mut View) -> std::io::Result<()> {
    terminal.draw(|screen| view.draw(screen)).map(|_| ())
}

/// A frame a second, and one at once when a lock is opened.
fn frames(
    mut sampler: Sampler,
    mut opened: watch::Receiver<Option<(String, String)>>,
) -> mpsc::Receiver<Frame> {
    let (send, frames) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(BETWEEN_FRAMES);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                changed = opened.changed() => if changed.is_err() { return },
            }
            let wanted = opened.borrow_and_update().clone();
            if send.send(sampler.frame(wanted.as_ref()).await).await.is_err() {
                return;
            }
        }
    });
    frames
}

/// Reads on a thread of its own, which ends with the program.
fn keyboard() -> mpsc::UnboundedReceiver<Event> {
    let (send, events) = mpsc::unbounded_channel();
    std::thread::spawn(move || while event::read().is_ok_and(|event| send.send(event).is_ok()) {});
    events
}

#[derive(Clone, Copy, PartialEq)]
enum Sort {
    Waiters,
    Wait,
    Held,
    Key,
}

impl Sort {
    const ALL: [(Sort, &str); 4] =
        [(Sort::Waiters, "waiters"), (Sort::Wait, "wait"), (Sort::Held, "hold"), (Sort::Key, "key")];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(sort, _)| *sort == self).map_or("", |(_, name)| name)
    }

    fn next(self) -> Self {
        let now = Self::ALL.iter().position(|(sort, _)| *sort == self).unwrap_or(0);
        Self::ALL[(now + 1) % Self::ALL.len()].0
    }
}

struct View {
    place: String,
    no_color: bool,
    frame: Frame,
    waiters: VecDeque<u64>,
    grants: VecDeque<u64>,
    sort: Sort,
    filter: String,
    is_typing: bool,
    table: TableState,
    /// Key and server of the lock that is looked into.
    opened: Option<(String, String)>,
}

impl View {
    fn new(place: String, no_color: bool) -> Self {
        Self {
            place,
            no_color,
            frame: Frame { problem: Some("asking …".to_owned()), ..Frame::default() },
            waiters: VecDeque::new(),
            grants: VecDeque::new(),
            sort: Sort::Waiters,
            filter: String::new(),
            is_typing: false,
            table: TableState::default().with_selected(0),
            opened: None,
        }
    }

    fn show(&mut self, frame: Frame) {
        let problems: Vec<&String> =
            frame.servers.iter().filter_map(|server| server.problem.as_ref()).collect();
        let problem = frame.problem.clone().or(problems.first().map(|&problem| problem.clone()));
        let is_away = problems.len() == frame.servers.len();
        // While nobody answers, what was seen last stays.
        if !is_away {
            self.frame = frame;
            let primaries = || self.frame.servers.iter().filter(|server| !server.is_replica);
            let waiters = primaries().map(|server| server.number("slock_waiters", None)).sum();
            let grants = primaries().map(|server| server.grants_per_second.round() as u64).sum();
            remember(&mut self.waiters, waiters);
            remember(&mut self.grants, grants);
        }
        self.frame.problem =
            problem.map(|problem| if is_away { format!("away, trying again: {problem}") } else { problem });
    }

    /// Gives whether to end.
    fn press(&mut self, key: KeyEvent) -> bool {
        let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if with_control => return true,
            KeyCode::Enter | KeyCode::Esc if self.is_typing => {
                self.is_typing = false;
                if key.code == KeyCode::Esc {
                    self.filter.clear();
                }
            }
            KeyCode::Backspace if self.is_typing => drop(self.filter.pop()),
            KeyCode::Char(letter) if self.is_typing => self.filter.push(letter),
            KeyCode::Char('q') => return true,
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace if self.opened.is_some() => self.opened = None,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('w') => self.sort = Sort::Waiters,
            KeyCode::Char('l') => self.sort = Sort::Wait,
            KeyCode::Char('h') => self.sort = Sort::Held,
            KeyCode::Char('n') => self.sort = Sort::Key,
            KeyCode::Down | KeyCode::Char('j') => self.table.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.table.select_previous(),
            KeyCode::Enter | KeyCode::Right => {
                let selected = self.table.selected().unwrap_or(0);
                self.opened = self.locks().get(selected).map(|lock| (lock.key.clone(), lock.node.clone()));
                self.frame.opened = None;
            }
            _ => {}
        }
        false
    }

    /// Those that the filter lets through, in order.
    fn locks(&self) -> Vec<&Lock> {
        let passes = |lock: &&Lock| {
            lock.key.contains(&self.filter) || owner(&lock.info["holders"][0]).contains(&self.filter)
        };
        let mut locks: Vec<&Lock> = self.frame.locks.iter().filter(passes).collect();
        locks.sort_by(|one, other| {
            let number = |lock: &Lock| match self.sort {
                Sort::Waiters => lock.waiters(),
                Sort::Wait => lock.longest_wait,
                Sort::Held => lock.held(),
                Sort::Key => 0,
            };
            number(other).cmp(&number(one)).then_with(|| one.key.cmp(&other.key))
        });
        locks
    }

    fn color(&self, color: Color) -> Style {
        if self.no_color { Style::new() } else { Style::new().fg(color) }
    }

    fn draw(&mut self, screen: &mut Screen) {
        let servers = if self.frame.servers.len() > 1 { self.frame.servers.len().min(8) + 1 } else { 0 };
        let heights = [1, 1, 1, 1, u16::try_from(servers).unwrap_or(0)].map(Constraint::Length);
        let areas = Layout::vertical([&heights[..], &[Constraint::Min(1), Constraint::Length(1)]].concat());
        let [title, waiters, grants, waits, nodes, body, foot] = areas.areas(screen.area());
        screen.render_widget(self.title(), title);
        self.line_of(screen, waiters, "waiters", &self.waiters, Color::Yellow);
        self.line_of(screen, grants, "grants/s", &self.grants, Color::Green);
        screen.render_widget(self.waits(), waits);
        self.servers(screen, nodes);
        match self.opened.clone() {
            Some((key, _)) => self.one_lock(screen, body, &key),
            None => self.all_locks(screen, body),
        }
        screen.render_widget(self.foot(), foot);
    }

    fn title(&self) -> Paragraph<'_> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        Paragraph::new(match &self.frame.problem {
            Some(problem) => Line::styled(clean(problem), bold.patch(self.color(Color::Red))),
            None => Line::from(vec![
                Span::styled("slock top ", bold),
                Span::raw(format!("{} · by {}", self.place, self.sort.name())),
            ]),
        })
    }

    /// A number and how it went.
    fn line_of(&self, screen: &mut Screen, area: Rect, name: &str, history: &VecDeque<u64>, color: Color) {
        let [text, curve] = Layout::horizontal([Constraint::Length(18), Constraint::Min(0)]).areas(area);
        let now = history.back().copied().unwrap_or(0);
        screen.render_widget(Paragraph::new(format!("{name:<9}{now:>8}")), text);
        let last = history.iter().rev().take(usize::from(curve.width)).copied().collect::<Vec<_>>();
        let curve_of = Sparkline::default().data(last.into_iter().rev()).style(self.color(color));
        screen.render_widget(curve_of, curve);
    }

    /// How long requests waited. Percentiles of several servers cannot be added up: the worst are shown.
    fn waits(&self) -> Paragraph<'_> {
        let worst = |field: &str, part: Option<&str>| {
            let numbers = self.frame.servers.iter().map(|server| server.number(field, part));
            Duration::from_millis(numbers.max().unwrap_or(0))
        };
        let seen = self.frame.locks.iter().map(|lock| lock.longest_wait).max().unwrap_or(0);
        let oldest = worst("slock_oldest_wait_ms", None).max(Duration::from_millis(seen));
        let primaries = self.frame.servers.iter().filter(|server| !server.is_replica);
        let locks: u64 = primaries.map(|server| server.number("slock_locks", None)).sum();
        let waited = |part| duration(worst("slock_wait_ms", Some(part)));
        let oldest = duration(oldest);
        let text = format!("waited p50 {} p99 {} now {oldest}", waited("p50"), waited("p99"));
        Paragraph::new(format!("{text} · p99.9 {} max {} · {locks} locks", waited("p99.9"), waited("max")))
    }

    fn servers(&self, screen: &mut Screen, area: Rect) {
        let row = |server: &crate::sample::Server| {
            let state = match (&server.problem, server.is_replica) {
                (Some(_), _) => "away",
                (None, true) => "replica",
                (None, false) => "primary",
            };
            let number = |field| server.number(field, None).to_string();
            let grants = format!("{:.0}", server.grants_per_second);
            let style = if server.problem.is_some() { self.color(Color::Red) } else { Style::new() };
            let cells = [
                clean(&server.address),
                state.to_owned(),
                number("slock_waiters"),
                grants,
                number("slock_locks"),
            ];
            Row::new(cells).style(style)
        };
        let widths = [
            Constraint::Min(12),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Length(5),
            Constraint::Length(5),
        ];
        let heading = Row::new(["SERVER", "STATE", "WAITERS", "GR/S", "LOCKS"]).style(self.heading());
        screen.render_widget(Table::new(self.frame.servers.iter().map(row), widths).header(heading), area);
    }

    fn heading(&self) -> Style {
        self.color(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    fn all_locks(&mut self, screen: &mut Screen, area: Rect) {
        let is_wide = area.width >= WIDE;
        let row = |lock: &&Lock| {
            let holder = &lock.info["holders"][0];
            let held =
                if holder.is_null() { "-".to_owned() } else { duration(milliseconds(&holder["held-ms"])) };
            let wait = duration(Duration::from_millis(lock.longest_wait));
            let mode = lock.info["mode"].as_str().unwrap_or("-").to_owned();
            let mut cells = vec![clean(&lock.key), lock.waiters().to_string()];
            if is_wide {
                cells.extend([wait, held, mode]);
            } else {
                cells.push(held);
            }
            cells.push(if holder.is_null() { "-".to_owned() } else { owner(holder) });
            Row::new(cells.into_iter().map(Cell::from).collect::<Vec<_>>())
        };
        let locks = self.locks();
        let rows: Vec<Row> = locks.iter().map(row).collect();
        let count = rows.len();
        let (headings, widths) = if is_wide {
            let widths = [
                Constraint::Fill(2),
                Constraint::Length(7),
                Constraint::Length(8),
                Constraint::Length(8),
                Constraint::Length(5),
                Constraint::Fill(2),
            ];
            (vec!["KEY", "WAITERS", "LONGEST", "HELD", "MODE", "HOLDER"], widths.to_vec())
        } else {
            let widths =
                [Constraint::Fill(1), Constraint::Length(4), Constraint::Length(7), Constraint::Fill(1)];
            (vec!["KEY", "WAIT", "HELD", "HOLDER"], widths.to_vec())
        };
        let selected = self.table.selected().unwrap_or(0).min(count.saturating_sub(1));
        self.table.select(Some(selected));
        let table = Table::new(rows, widths).header(Row::new(headings).style(self.heading()));
        let table = table.row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        screen.render_stateful_widget(table, area, &mut self.table);
    }

    fn one_lock(&self, screen: &mut Screen, area: Rect, key: &str) {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let mut lines = vec![Line::styled(clean(key), bold)];
        match &self.frame.opened {
            None => lines.push(Line::raw("asking …")),
            Some(Json::Null) => lines.push(Line::raw("free: nobody holds it, nobody waits")),
            Some(info) => {
                lines.push(Line::raw(format!(
                    "{}, {} wait",
                    info["mode"].as_str().unwrap_or("-"),
                    info["waiters"]
                )));
                for holder in info["holders"].as_array().into_iter().flatten() {
                    let (held, left) = (milliseconds(&holder["held-ms"]), milliseconds(&holder["pttl"]));
                    let (held, left) = (duration(held), duration(left));
                    lines.push(Line::styled(
                        format!("held {held}, {left} left: {}", owner(holder)),
                        self.color(Color::Green),
                    ));
                    lines.push(Line::raw(format!(
                        "  fence {} token {}",
                        holder["fence"],
                        clean(holder["token"].as_str().unwrap_or(""))
                    )));
                }
                for waiter in info["queue"].as_array().into_iter().flatten() {
                    let waiting = duration(milliseconds(&waiter["waiting-ms"]));
                    let mode = waiter["mode"].as_str().unwrap_or("-");
                    lines.push(Line::styled(
                        format!("waits {waiting} to {mode}: {}", owner(waiter)),
                        self.color(Color::Yellow),
                    ));
                }
            }
        }
        screen.render_widget(Paragraph::new(lines), area);
    }

    fn foot(&self) -> Paragraph<'_> {
        let text = if self.is_typing {
            format!("filter: {}_", clean(&self.filter))
        } else if self.opened.is_some() {
            "esc back  q quit".to_owned()
        } else if !self.filter.is_empty() {
            format!("filter: {}  esc clears it", clean(&self.filter))
        } else {
            "q quit  s sort  / filter  ↑↓ enter look".to_owned()
        };
        Paragraph::new(text).style(self.color(Color::DarkGray))
    }
}

fn remember(history: &mut VecDeque<u64>, number: u64) {
    if history.len() == HISTORY {
        history.pop_front();
    }
    history.push_back(number);
}
