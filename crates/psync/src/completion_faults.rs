//! For tests: completions that get lost, come late, or come twice; and what is reported meanwhile.

use crate::lock::Mutex;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// What becomes of a completion.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    Come,
    Lost,
    /// At once, and again after this time.
    Twice(Duration),
    Late(Duration),
}

/// Stands between a backend and the completions that the kernel reports.
pub(crate) struct Faults {
    /// By the number of the completion, from 0.
    fate: Box<dyn Fn(usize) -> Fate + Send + Sync>,
    /// Whether rings wait as on kernels that cannot limit the wait.
    pub polls: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seen: usize,
    held: VecDeque<(Instant, Box<dyn Any + Send>)>,
}

impl Faults {
    pub fn new(fate: impl Fn(usize) -> Fate + Send + Sync + 'static) -> Self {
        Self { fate: Box::new(fate), polls: false, state: Mutex::default() }
    }

    pub fn with_polls(self, polls: bool) -> Self {
        Self { polls, ..self }
    }

    /// The next completion, of those that `arrived` returns and those that were held back.
    pub fn next<C: Copy + Send + 'static>(&self, mut arrived: impl FnMut() -> Option<C>) -> Option<C> {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            if let Some(due) = state.held.iter().position(|(at, _)| *at <= now) {
                let held = state.held.remove(due).and_then(|(_, held)| held.downcast().ok());
                return held.map(|held| *held);
            }
            let completion = arrived()?;
            let number = state.seen;
            state.seen += 1;
            match (self.fate)(number) {
                Fate::Come => return Some(completion),
                Fate::Lost => {}
                Fate::Twice(after) => {
                    state.held.push_back((now + after, Box::new(completion)));
                    return Some(completion);
                }
                Fate::Late(by) => state.held.push_back((now + by, Box::new(completion))),
            }
        }
    }
}

/// The events that this thread reports while `work` runs, as text.
pub(crate) fn events_of(work: impl FnOnce()) -> Vec<String> {
    // One for all threads: a subscriber of one thread may miss events that another thread met before.
    static GLOBAL: LazyLock<()> = LazyLock::new(|| {
        tracing::subscriber::set_global_default(Collecting).expect("the only one in these tests");
    });
    LazyLock::force(&GLOBAL);
    EVENTS.take();
    work();
    EVENTS.take()
}

/// Does something while each report of an error panics, in this thread.
pub(crate) fn while_errors_panic(work: impl FnOnce()) {
    PANICS.set(true);
    work();
    PANICS.set(false);
}

thread_local! {
    static PANICS: Cell<bool> = const { Cell::new(false) };
    static EVENTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Collecting;

impl tracing::Subscriber for Collecting {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(format!("{}", event.metadata().level()));
        event.record(&mut text);
        EVENTS.with_borrow_mut(|events| events.push(text.0));
        assert!(
            *event.metadata().level() > tracing::Level::ERROR || !PANICS.get(),
            "in the subscriber, for this test"
        );
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}
