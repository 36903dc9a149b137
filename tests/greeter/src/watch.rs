//! Files that are read again and again, with a count of the changes.

use std::collections::BTreeMap;
use std::io::Result;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, thread};

/// Pause between two readings.
const PAUSE: Duration = Duration::from_millis(1);

static WATCHED: Mutex<BTreeMap<String, Arc<Watched>>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Watched {
    readings: AtomicU64,
    changes: AtomicU64,
}

/// Watches a file from the first request for it on. Returns the readings and the changes until now, as `READINGS
/// CHANGES`.
pub(crate) fn watch(file: &str) -> Result<String> {
    let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let watched = match all.get(file) {
        Some(watched) => watched.clone(),
        None => {
            let first = fs::read(file)?;
            let watched = Arc::new(Watched::default());
            let (file_name, noted) = (file.to_owned(), watched.clone());
            thread::Builder::new().spawn(move || follow(&file_name, first, &noted))?;
            all.insert(file.to_owned(), watched.clone());
            watched
        }
    };
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    Ok(format!(
        "{} {}\n",
        count(&watched.readings),
        count(&watched.changes)
    ))
}

/// Reads the file for ever. A failed read counts as a change.
fn follow(file: &str, mut last: Vec<u8>, watched: &Watched) {
    loop {
        let now = fs::read(file).unwrap_or_default();
        watched.readings.fetch_add(1, Ordering::Relaxed);
        if now != last {
            watched.changes.fetch_add(1, Ordering::Relaxed);
            last = now;
        }
        thread::sleep(PAUSE);
    }
}
