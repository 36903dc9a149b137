#![allow(clippy::unwrap_used)]

use std::fs;

use tempfile::TempDir;

use super::*;

/// A root directory with a kernel's files, and one module that it has built in.
struct Kernel {
    root: TempDir,
    drivers: Drivers,
}

impl Kernel {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let below = |path: &str| root.path().join(path);
        for (path, content) in [
            ("proc/sys/vm/swappiness", "60\n"),
            ("proc/sys/kernel/panic", "0\n"),
            ("sys/kernel/mm/enabled", "always [madvise] never\n"),
            ("sys/module/loop/parameters/max_loop", "0\n"),
            ("modules/modules.alias", "alias char-major-10-237 loop\n"),
            ("modules/modules.dep", ""),
            ("modules/modules.builtin", "kernel/drivers/block/loop.ko\n"),
        ] {
            fs::create_dir_all(below(path).parent().unwrap()).unwrap();
            fs::write(below(path), content).unwrap();
        }
        let drivers = Drivers::read(&below("modules"), &below("sys")).unwrap();
        Self { root, drivers }
    }

    fn read(&self, path: &str) -> String {
        let text = fs::read_to_string(self.root.path().join(path)).unwrap();
        text.trim_end().to_owned()
    }

    fn settings(&self, left: Undo) -> KernelSettings {
        KernelSettings::at(self.root.path().to_owned(), left)
    }
}

/// The records that were kept, and the value of one parameter at that time.
struct Kept<'a> {
    kernel: &'a Kernel,
    seen: Mutex<Vec<(Undo, String)>>,
}

impl<'a> Kept<'a> {
    fn of(kernel: &'a Kernel) -> Self {
        let seen = Mutex::default();
        Self { kernel, seen }
    }

    fn last(&self) -> Undo {
        self.seen.lock().unwrap().last().unwrap().0.clone()
    }
}

impl UndoKeeper for Kept<'_> {
    async fn keep(&self, undo: Undo) {
        let value = self.kernel.read("proc/sys/kernel/panic");
        self.seen.lock().unwrap().push((undo, value));
    }
}

fn spec(parameters: &[(&str, &str)]) -> KernelSpec {
    let parameter = |(path, value): &(&str, &str)| (path.parse().unwrap(), (*value).to_owned());
    KernelSpec {
        parameters: parameters.iter().map(parameter).collect(),
        modules: Vec::new(),
    }
}

#[tokio::test]
async fn settings_come_and_go_back_whoever_does_it() {
    let kernel = Kernel::new();
    let kept = Kept::of(&kernel);
    let settings = kernel.settings(Undo::default());
    let both = spec(&[
        ("/proc/sys/vm/swappiness", "10"),
        ("/sys/kernel/mm/enabled", "always"),
    ]);
    assert!(
        settings
            .apply(&kernel.drivers, &both, &kept)
            .await
            .is_empty()
    );
    assert_eq!(kernel.read("proc/sys/vm/swappiness"), "10");
    assert_eq!(kernel.read("sys/kernel/mm/enabled"), "always");
    let status = &settings.statuses()[0];
    assert_eq!(
        (status.current.as_deref(), &*status.before),
        (Some("10"), "60")
    );

    // A machined that died is followed by one that gets the earlier values over a memfd.
    let left = Undo::from_memfd(&kept.last().to_memfd().unwrap()).unwrap();
    let settings = kernel.settings(left);
    let one = spec(&[("/proc/sys/vm/swappiness", "20")]);
    assert!(
        settings
            .apply(&kernel.drivers, &one, &kept)
            .await
            .is_empty()
    );
    assert_eq!(kernel.read("proc/sys/vm/swappiness"), "20");
    assert_eq!(kernel.read("sys/kernel/mm/enabled"), "madvise");

    let nothing = KernelSpec::default();
    assert!(
        settings
            .apply(&kernel.drivers, &nothing, &kept)
            .await
            .is_empty()
    );
    assert_eq!(kernel.read("proc/sys/vm/swappiness"), "60");
    assert_eq!(kept.last(), Undo::default());
}

/// The kernel accepts some writes without an error and keeps the old value: it stays on record for the next machined.
#[tokio::test]
async fn a_value_that_is_not_taken_back_stays_on_record() {
    let kernel = Kernel::new();
    let kept = Kept::of(&kernel);
    let settings = kernel.settings(Undo::default());
    let wished = spec(&[("/proc/sys/vm/swappiness", "10")]);
    settings.apply(&kernel.drivers, &wished, &kept).await;
    let file = kernel.root.path().join("proc/sys/vm/swappiness");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/null", &file).unwrap();
    let nothing = KernelSpec::default();
    let failures = settings.apply(&kernel.drivers, &nothing, &kept).await;
    assert!(
        matches!(failures[..], [KernelSettingError::Restore { .. }]),
        "{failures:?}"
    );
    // The next machined tries again, and the kernel takes the value.
    fs::remove_file(&file).unwrap();
    fs::write(&file, "10\n").unwrap();
    let next = kernel.settings(kept.last());
    let failures = next.apply(&kernel.drivers, &nothing, &kept).await;
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(kernel.read("proc/sys/vm/swappiness"), "60");
    assert_eq!(kept.last(), Undo::default());
}

#[tokio::test]
async fn what_it_takes_to_undo_is_kept_first() {
    let kernel = Kernel::new();
    let kept = Kept::of(&kernel);
    let settings = kernel.settings(Undo::default());
    let wanted = spec(&[("/proc/sys/kernel/panic", "5")]);
    settings.apply(&kernel.drivers, &wanted, &kept).await;
    let (undo, value) = kept.seen.lock().unwrap()[0].clone();
    assert_eq!(undo.parameters.len(), 1);
    assert_eq!(value, "0", "set before it was kept");
}

#[tokio::test]
async fn one_that_fails_does_not_stop_the_others() {
    let kernel = Kernel::new();
    let settings = kernel.settings(Undo::default());
    let mut wanted = spec(&[
        ("/proc/sys/kernel/nothing", "1"),
        ("/proc/sys/vm/swappiness", "10"),
    ]);
    wanted.modules.push(KernelModule {
        name: "nothing".to_owned(),
        parameters: Vec::new(),
    });
    let failures = settings
        .apply(&kernel.drivers, &wanted, &Kept::of(&kernel))
        .await;
    let failures: Vec<String> = failures.iter().map(ToString::to_string).collect();
    assert_eq!(failures.len(), 2, "{failures:?}");
    assert!(failures[0].contains("the module nothing"), "{failures:?}");
    assert!(
        failures[1].contains("/proc/sys/kernel/nothing"),
        "{failures:?}"
    );
    assert_eq!(kernel.read("proc/sys/vm/swappiness"), "10");
}

#[tokio::test]
async fn a_module_that_is_there_already_takes_its_parameters_as_files() {
    let kernel = Kernel::new();
    let settings = kernel.settings(Undo::default());
    let wanted = KernelSpec {
        modules: vec![KernelModule {
            name: "char-major-10-237".to_owned(),
            parameters: vec!["max-loop=8".to_owned()],
        }],
        ..KernelSpec::default()
    };
    for _ in 0..2 {
        let failures = settings
            .apply(&kernel.drivers, &wanted, &Kept::of(&kernel))
            .await;
        assert!(failures.is_empty(), "{failures:?}");
        assert_eq!(kernel.read("sys/module/loop/parameters/max_loop"), "8");
    }
    settings
        .apply(&kernel.drivers, &KernelSpec::default(), &Kept::of(&kernel))
        .await;
    assert_eq!(kernel.read("sys/module/loop/parameters/max_loop"), "0");
}
