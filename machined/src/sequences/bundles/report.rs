//! Tells how far a bundle is: as a resource, and in sentences on the console and as events.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use instar_api::events::EventPayload;
use instar_api::machine::ServiceStateEvent;
use instar_api::machine::service_state_event::Action;
use tokio::sync::watch;

use crate::base::lock::Lock as _;
use crate::bundles::{
    BundleFact, Event, FoundFile, FoundImage, FoundList, Kind, Phase, Place, Sentence, Support,
    Upgrade, news, next, sentences,
};
use crate::machine::Machine;
use crate::store::Store;
use crate::store::event_log::{ActorId, EventLog};
use crate::values::Digest;

/// Bytes between two reports of the verification, or of an image's import.
const STEP: u64 = 8 << 20;

/// The report of one bundle.
pub struct Report {
    store: Store,
    events: EventLog,
    fact: Mutex<BundleFact>,
    /// Whether its resource is gone, as the stick is: the name may be that of another stick's since.
    is_forgotten: AtomicBool,
    phases: watch::Sender<Phase>,
}

impl Report {
    /// Begins to report about a bundle of this origin.
    pub fn begin(machine: &Machine, origin: &str, place: Place) -> Self {
        let phase = Phase::Searching;
        let report = Report {
            store: machine.store.clone(),
            events: machine.events.clone(),
            fact: Mutex::new(BundleFact::new(origin.to_owned(), place, phase.clone())),
            is_forgotten: AtomicBool::new(false),
            phases: watch::channel(phase).0,
        };
        let fact = report.fact.locked().clone();
        report.say(&fact, &news(&[], &sentences(&fact), true));
        report.store.put(origin, fact);
        report
    }

    /// Notes which bundle it is, and the images and files that it says it has.
    pub fn name(&self, digest: Digest, images: Vec<FoundImage>, files: Vec<FoundFile>) {
        self.change(|fact| {
            fact.digest = Some(digest.to_string());
            fact.images = images;
            fact.files = files;
        });
    }

    /// Notes the images with the decisions about them.
    pub fn judged(&self, images: Vec<FoundImage>) {
        self.change(|fact| fact.images = images);
    }

    /// Notes the use of the files of extensions.
    pub fn files(&self, files: Vec<FoundFile>) {
        self.change(|fact| fact.files = files);
    }

    /// Notes the use of the lists of channels.
    pub fn lists(&self, lists: Vec<FoundList>) {
        self.change(|fact| fact.lists = lists);
    }

    /// Notes the decision about an upgrade.
    pub fn upgrade(&self, upgrade: Upgrade) {
        self.change(|fact| fact.upgrade = Some(upgrade));
    }

    /// Notes how far the support data are.
    pub fn support(&self, support: Support) {
        self.change(|fact| fact.support = Some(support));
    }

    /// Watches the state.
    pub fn watch(&self) -> watch::Receiver<Phase> {
        self.phases.subscribe()
    }

    /// The origin of the bundle.
    pub fn origin(&self) -> String {
        self.fact.locked().origin.clone()
    }

    /// The state.
    pub fn phase(&self) -> Phase {
        self.fact.locked().phase.clone()
    }

    /// All sentences about the bundle.
    pub fn texts(&self) -> Vec<String> {
        let said = sentences(&self.fact.locked()).into_iter();
        said.map(|sentence| sentence.text).collect()
    }

    /// Reports bytes that were compared, a few hundred times for a gigabyte.
    pub fn read(&self, bytes: u64) {
        let told = match &self.fact.locked().phase {
            Phase::Verifying { bytes, .. } => *bytes,
            _ => return,
        };
        if bytes >= told + STEP {
            self.tell(Event::Read(bytes));
        }
    }

    /// Reports bytes of an image that were unpacked, as often.
    pub fn unpacked(&self, bytes: u64, total: u64) {
        let told = match &self.fact.locked().phase {
            Phase::Importing { total: 0, .. } => None,
            Phase::Importing { bytes, .. } => Some(*bytes),
            _ => return,
        };
        if told.is_none_or(|told| bytes >= told + STEP) {
            self.tell(Event::Unpacked(bytes, total));
        }
    }

    /// Reports an event. When the bundle is forgotten, its resource goes.
    pub fn tell(&self, event: Event) {
        let before = self.phase();
        match next(before.clone(), event) {
            None => {
                let fact = self.fact.locked();
                self.is_forgotten.store(true, Ordering::Relaxed);
                self.store.remove::<BundleFact>(&fact.origin);
            }
            Some(after) if after == before => {}
            Some(after) => {
                self.change(|fact| fact.phase = after.clone());
                self.phases.send_replace(after);
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut BundleFact)) {
        let mut fact = self.fact.locked();
        let before = fact.clone();
        change(&mut fact);
        if *fact == before {
            return;
        }
        let with_progress = is_step(&before, &fact);
        let said = news(&sentences(&before), &sentences(&fact), with_progress);
        self.say(&fact, &said);
        // The lock on the fact is held: what was forgotten is not put again.
        if !self.is_forgotten.load(Ordering::Relaxed) {
            self.store.put(&fact.origin, fact.clone());
        }
    }

    fn say(&self, fact: &BundleFact, said: &[Sentence]) {
        let origin = &fact.origin;
        for sentence in said {
            match sentence.kind {
                Kind::Problem => tracing::warn!("{origin}: {}", sentence.text),
                Kind::Fact | Kind::Progress => tracing::info!("{origin}: {}", sentence.text),
            }
        }
        if said.is_empty() {
            return;
        }
        let texts: Vec<&str> = said.iter().map(|it| it.text.as_str()).collect();
        // The one type of event with a text of its own that clients of Talos show.
        let event = ServiceStateEvent {
            service: format!("bundle {origin}"),
            action: action(&fact.phase).into(),
            message: texts.join(" "),
            health: None,
        };
        let payload = EventPayload::ServiceState(event);
        self.events.emit(&ActorId::default(), payload);
    }
}

fn action(phase: &Phase) -> Action {
    match phase {
        Phase::Taken { .. } | Phase::Empty => Action::Finished,
        Phase::Refused { .. } => Action::Failed,
        Phase::Waiting { .. } | Phase::Asking { .. } => Action::Waiting,
        Phase::Searching
        | Phase::Receiving { .. }
        | Phase::Verifying { .. }
        | Phase::Importing { .. }
        | Phase::Keeping { .. } => Action::Running,
    }
}

/// Whether the console shows figures too: at another state or image, and at each quarter of the bytes.
fn is_step(before: &BundleFact, after: &BundleFact) -> bool {
    place_of(&before.phase) != place_of(&after.phase) || before.support != after.support
}

/// The state, the image's number, and the quarter.
fn place_of(phase: &Phase) -> (&'static str, usize, u64) {
    let quarter = |bytes: u64, total: u64| {
        let quarters = bytes.saturating_mul(4).checked_div(total);
        quarters.unwrap_or(0)
    };
    match phase {
        Phase::Receiving { bytes, total } | Phase::Verifying { bytes, total } => {
            (phase.word(), 0, quarter(*bytes, *total))
        }
        Phase::Importing {
            number,
            bytes,
            total,
            ..
        } => (phase.word(), *number, quarter(*bytes, *total)),
        Phase::Keeping { images, number, .. } => (phase.word(), images + number, 0),
        Phase::Searching
        | Phase::Waiting { .. }
        | Phase::Asking { .. }
        | Phase::Taken { .. }
        | Phase::Refused { .. }
        | Phase::Empty => (phase.word(), 0, 0),
    }
}
