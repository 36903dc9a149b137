#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A kernel whose steps can be made to fail.
#[derive(Debug)]
struct Kernel {
    /// The overlays, the topmost first.
    names: Mutex<Vec<String>>,
    /// The number of steps that succeed before one fails.
    good: AtomicUsize,
    /// The number of overlays that were added.
    added: AtomicUsize,
}

impl Kernel {
    fn new() -> Arc<Self> {
        Arc::new(Kernel {
            names: Mutex::default(),
            good: AtomicUsize::new(usize::MAX),
            added: AtomicUsize::default(),
        })
    }

    fn step(&self) -> anyhow::Result<()> {
        let left = self.good.load(Ordering::SeqCst);
        // The one that fails is followed by others that succeed.
        self.good.store(left.wrapping_sub(1), Ordering::SeqCst);
        ensure!(left != 0, "the kernel refuses it");
        Ok(())
    }

    /// Returns the name of the overlay whose files are seen.
    fn seen(&self) -> Option<String> {
        self.names.locked().first().cloned()
    }
}

impl OverUsr for Kernel {
    fn names(&self) -> anyhow::Result<Vec<String>> {
        self.step()?;
        Ok(self.names.locked().clone())
    }

    fn add(&self, name: &str, _directories: &[PathBuf]) -> anyhow::Result<()> {
        self.step()?;
        self.added.fetch_add(1, Ordering::SeqCst);
        let mut names = self.names.locked();
        let place = usize::from(!names.is_empty());
        names.insert(place, name.to_owned());
        Ok(())
    }

    fn take_topmost(&self) -> anyhow::Result<()> {
        self.step()?;
        self.names.locked().remove(0);
        Ok(())
    }
}

/// A generation: a kernel, and a directory in memory.
struct Generation {
    home: tempfile::TempDir,
    kernel: Arc<Kernel>,
}

impl Generation {
    fn new() -> Self {
        Generation {
            home: tempfile::tempdir().unwrap(),
            kernel: Kernel::new(),
        }
    }

    /// Returns the layers of a machined that starts in this generation, with the disk there.
    fn machined(&self) -> Layers {
        let layers = Layers {
            over_usr: self.kernel.clone(),
            ..Layers::at("/usr".into(), self.home.path().to_owned())
        };
        layers.adopt().unwrap();
        layers.open();
        layers
    }

    fn added(&self) -> usize {
        self.kernel.added.load(Ordering::SeqCst)
    }
}

fn tree(name: &str) -> Tree {
    Tree {
        image: Digest::of(name.as_bytes()),
        path: Path::new("/var").join(name),
    }
}

#[test]
fn nothing_is_laid_while_the_disk_is_away() {
    let layers = Layers::default();
    let refused = layers.put(&[tree("a")]).unwrap_err().to_string();
    assert!(refused.contains("is not mounted"), "{refused}");
    assert!(layers.laid().is_empty());
    // No trees need no disk, and a machine without extensions mounts nothing.
    layers.put(&[]).unwrap();
    layers.close().unwrap();
    assert_eq!(layers.own_usr(), Path::new("/usr"));
    assert!(!Path::new("/run/os-extensions").exists());
}

#[test]
fn a_machined_that_starts_again_lays_nothing_again_and_knows_what_was_laid() {
    let generation = Generation::new();
    let layers = generation.machined();
    layers.put(&[tree("first")]).unwrap();
    let now = [tree("second"), tree("third")];
    layers.put(&now).unwrap();
    let seen = generation.kernel.seen();

    let again = generation.machined();
    let laid = ["first", "second", "third"].map(|name| tree(name).image);
    assert_eq!(again.laid(), laid.into());
    assert_eq!(again.in_force().unwrap(), Some(now.to_vec()));
    again.put(&now).unwrap();
    assert_eq!((generation.kernel.seen(), generation.added()), (seen, 2));
    again.close().unwrap();
    assert_eq!(generation.kernel.seen(), None);
}

#[test]
fn an_overlay_that_no_record_names_is_replaced() {
    let generation = Generation::new();
    generation.machined().put(&[tree("a")]).unwrap();
    std::fs::remove_file(generation.home.path().join(RECORD)).unwrap();
    let again = generation.machined();
    assert_eq!(again.in_force().unwrap(), None);
    again.put(&[tree("a")]).unwrap();
    assert_eq!(generation.kernel.seen().as_deref(), Some("extensions-2"));
    assert_eq!(generation.kernel.names.locked().len(), 1);
}

/// Whichever step fails, the old trees or the new ones are in force as a whole; what the layers say of it is true, also after a restart; and
/// the next try succeeds.
#[test]
fn a_change_that_fails_halfway_leaves_the_old_trees_or_the_new_ones() {
    for to in [vec![tree("new"), tree("other")], Vec::new()] {
        for good in 0.. {
            let generation = Generation::new();
            let layers = generation.machined();
            let old = vec![tree("old")];
            layers.put(&old).unwrap();
            generation.kernel.good.store(good, Ordering::SeqCst);
            let changed = layers.put(&to);
            generation.kernel.good.store(usize::MAX, Ordering::SeqCst);
            if changed.is_ok() {
                assert!(good > 1, "no step was made to fail");
                break;
            }
            for layers in [&layers, &generation.machined()] {
                let found = layers.in_force().unwrap().unwrap();
                assert!(found == old || found == to, "{good}: {found:?}");
                assert!(generation.kernel.names.locked().len() < 2);
            }
            layers.put(&to).unwrap();
            assert_eq!(layers.in_force().unwrap().as_ref(), Some(&to));
            layers.close().unwrap();
            assert_eq!(generation.kernel.seen(), None, "{good}");
        }
    }
}

#[test]
fn a_record_that_cannot_be_written_changes_nothing() {
    let generation = Generation::new();
    let layers = generation.machined();
    layers.put(&[tree("old")]).unwrap();
    let seen = generation.kernel.seen();
    // A directory takes the record's place.
    let record = generation.home.path().join(RECORD);
    std::fs::remove_file(&record).unwrap();
    std::fs::create_dir(&record).unwrap();
    assert!(layers.put(&[tree("new")]).is_err());
    assert_eq!(generation.kernel.seen(), seen);
    assert_eq!(layers.in_force().unwrap(), Some(vec![tree("old")]));
}
