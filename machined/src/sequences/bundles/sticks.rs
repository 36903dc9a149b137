//! Watches for sticks with bundles, from the end of the boot on: those with the label, and filesystems that have the directory
//! `instar-bundle`. Nothing is said about a filesystem with neither.
//!
//! Each stick is handled in a task of its own. One that was refused is looked at again when the config changes: an approval may have come.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, bail};
use instar_bundle::{FOLDER, Files, OnMedium, find, folder};

use super::medium::{Access, load_filesystems, mount};
use super::support::{self, CollectSupport};
use super::{Report, rules, take_bundle, tell_end, upgrade};
use crate::base::blocking_io;
use crate::base::error_chain::chain;
use crate::bundles::upgrade::Installer;
use crate::bundles::{
    Event, FileSystem, LABELS, Origin, Phase, Place, Stick, Uevents, Word, plugged_in,
};
use crate::config::Sticks;
use crate::machine::Machine;
use crate::modules::Class;
use crate::mounts::transient_mount::TransientMount;

/// Pause after an error of the socket.
const AGAIN: Duration = Duration::from_secs(60);

/// The advice about a stick on which no bundle is found.
const UNREADABLE: &str = "The stick needs the filesystem FAT or ext4, and one bundle in its top directory, as `instarctl bundle create` makes it.";

/// A stick that is plugged in.
struct Handled {
    stick: Stick,
    report: LateReport,
}

/// The report of a stick, which begins once it is known that the stick is for this machine.
#[derive(Clone, Default)]
struct LateReport {
    /// `Some(None)`: the stick is gone, and there is nothing to report.
    report: Arc<OnceLock<Option<Arc<Report>>>>,
}

impl LateReport {
    /// Begins it, unless the stick is gone.
    fn begin(&self, machine: &Machine, stick: &Stick) -> Option<Arc<Report>> {
        let begin = || {
            let place = match stick.label {
                Some(label) => Place::Stick {
                    label: label.to_owned(),
                },
                None => Place::Folder {
                    directory: FOLDER.to_owned(),
                },
            };
            Some(Arc::new(Report::begin(machine, &stick.name, place)))
        };
        self.report.get_or_init(begin).clone()
    }

    fn pulled_out(&self) {
        if let Some(report) = self.report.get_or_init(|| None) {
            report.tell(Event::PulledOut);
        }
    }

    fn is_refused(&self) -> bool {
        let report = self.report.get().and_then(Option::as_ref);
        report.is_some_and(|report| matches!(report.phase(), Phase::Refused { .. }))
    }
}

/// Handles sticks for as long as the machine runs. `collect` collects support data.
pub async fn watch_sticks(machine: Arc<Machine>, collect: CollectSupport) {
    let mut settled = machine.watch_settled();
    if settled.wait_for(|settled| *settled).await.is_err() {
        return;
    }
    let mut config = machine.watch_config();
    let mut handled = BTreeMap::new();
    loop {
        let events = match Uevents::listen() {
            Ok(events) => events,
            Err(error) => {
                tracing::warn!("sticks are not noticed: {error}");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        // After the socket is open, so that nothing is missed in between. A stick that came before may lack its driver.
        let first = match has_disk(&machine) {
            true => Word::ANYTHING,
            // Drivers of disks take some MiB, and such a machine has loaded none.
            false => Word::BLOCK,
        };
        heard(&machine, collect, first, &mut handled).await;
        let ended = loop {
            tokio::select! {
                word = events.next() => match word {
                    Ok(word) => heard(&machine, collect, word, &mut handled).await,
                    Err(error) => break error,
                },
                // The sender lives in the machine.
                _ = config.changed() => {
                    handled.retain(|_, it: &mut Handled| !it.report.is_refused());
                    look(&machine, collect, &mut handled).await;
                }
            }
        };
        tracing::warn!("the kernel's words about devices ended: {ended}");
        tokio::time::sleep(AGAIN).await;
    }
}

/// Whether the config names a disk.
fn has_disk(machine: &Machine) -> bool {
    let configured = machine.config();
    configured.is_some_and(|configured| configured.config.install.is_some())
}

async fn heard(
    machine: &Arc<Machine>,
    collect: CollectSupport,
    word: Word,
    handled: &mut BTreeMap<String, Handled>,
) {
    if word.wants_driver
        && let Ok(drivers) = machine.drivers()
        && let Err(error) = drivers.load_for(Class::Block).await
    {
        tracing::warn!("a device came without its driver: {}", chain(&error));
    }
    if word.block {
        look(machine, collect, handled).await;
    }
}

/// Compares the sticks that are plugged in with those that are handled.
async fn look(
    machine: &Arc<Machine>,
    collect: CollectSupport,
    handled: &mut BTreeMap<String, Handled>,
) {
    let accepts = machine.config().is_some() && rules(machine).sticks == Sticks::Accept;
    let looking = || plugged_in(Path::new("/sys"), Path::new("/dev"));
    let mut found = match blocking_io::within(blocking_io::ANSWER, looking).await {
        Ok(Ok(found)) if accepts => found,
        Ok(Ok(_)) => BTreeMap::new(),
        Ok(Err(error)) => return tracing::warn!("the devices cannot be listed: {error}"),
        Err(error) => return tracing::warn!("{error}"),
    };
    let own = machine.disk.status().borrow().disk.clone();
    found.retain(|name, stick| {
        stick.label.is_some() || !own.as_deref().is_some_and(|disk| is_part_of(disk, name))
    });
    handled.retain(|name, it| {
        let stays = found.get(name) == Some(&it.stick);
        if !stays {
            it.report.pulled_out();
        }
        stays
    });
    for (name, stick) in found {
        if handled.contains_key(&name) {
            continue;
        }
        let report = LateReport::default();
        let (machine, late) = (machine.clone(), report.clone());
        if stick.label.is_some() {
            late.begin(&machine, &stick);
        }
        crate::base::task::spawn(handle(machine, collect, stick.clone(), late));
        handled.insert(name, Handled { stick, report });
    }
}

/// Whether a device is this disk or one of its partitions. The machine's own disk is for nobody to look through: a mount of its EFI system
/// partition would stand in the way of an upgrade's.
fn is_part_of(disk: &Path, device: &str) -> bool {
    let disk = disk.file_name().map(|name| name.to_string_lossy());
    let rest = disk.and_then(|disk| device.strip_prefix(&*disk));
    rest.is_some_and(|rest| {
        rest.is_empty() || rest.starts_with(|first: char| first.is_ascii_digit() || first == 'p')
    })
}

/// Does all that a stick is for: support data first, as an upgrade may end this generation; then its bundle. The stick is unmounted before
/// its end is told. Then the upgrade begins, if the bundle is for one.
async fn handle(machine: Arc<Machine>, collect: CollectSupport, stick: Stick, late: LateReport) {
    if !stick.filesystem.is_readable() {
        // It is a stick for this machine only by its label: the report has begun.
        if let Some(report) = late.begin(&machine, &stick) {
            report.tell(needs_another(stick.filesystem));
        }
        return;
    }
    let signs = signs(&machine, &stick).await;
    if stick.label.is_none() && !signs.as_ref().is_ok_and(|it| it.has_folder) {
        return;
    }
    let Some(report) = late.begin(&machine, &stick) else {
        return;
    };
    let asks = match signs {
        // Whoever wants support data writes the label.
        Ok(signs) => signs.asks_for_support && stick.label.is_some(),
        Err(error) => return report.tell(unreadable(&error)),
    };
    if asks {
        support::write(&machine, &stick, collect, &report).await;
    }
    match open(&stick).await {
        Ok(Some((mount, files))) => take(&machine, mount, files, &report).await,
        Ok(None) if asks => report.tell(Event::NoBundle),
        Ok(None) => report.tell(unreadable(&anyhow::anyhow!("there is none on the stick"))),
        Err(error) => report.tell(unreadable(&error)),
    }
}

/// A stick whose filesystem is not read here: the person who brought it has to format it.
fn needs_another(filesystem: FileSystem) -> Event {
    let found = match filesystem {
        FileSystem::Exfat => "exFAT",
        FileSystem::Ntfs => "NTFS",
        readable => readable.kind(),
    };
    let [of_ext4, of_fat] = LABELS;
    Event::Failed {
        reason: format!("the stick has the filesystem {found}, which cannot be read here"),
        advice: format!(
            "Format the stick as FAT32 with the label {of_fat}, or as ext4 with the label {of_ext4}, and copy the bundle onto it again."
        ),
    }
}

fn unreadable(error: &anyhow::Error) -> Event {
    Event::Failed {
        reason: format!("{error:#}"),
        advice: UNREADABLE.to_owned(),
    }
}

async fn take(machine: &Arc<Machine>, mount: TransientMount, files: Files, report: &Arc<Report>) {
    let taken = take_bundle(machine, files, Origin::Stick, report).await;
    drop(mount);
    tell_end(report, &taken);
    if let Ok(taken) = taken
        && let Some(installer) = installer_of(taken.installer, &report.phase())
    {
        upgrade::begin(machine, taken.bundle, installer, report).await;
    }
}

/// The installer that the machine is upgraded with. A stick that was pulled out before its end is refused, also if all its bytes had been read
/// by then: whoever does that wants no upgrade.
fn installer_of(planned: Option<Installer>, phase: &Phase) -> Option<Installer> {
    planned.filter(|_| matches!(phase, Phase::Taken { .. }))
}

/// The directories of a stick that say what it is for.
struct Signs {
    asks_for_support: bool,
    has_folder: bool,
}

async fn signs(machine: &Machine, stick: &Stick) -> anyhow::Result<Signs> {
    load_filesystems(machine).await?;
    let stick = stick.clone();
    let looking = blocking_io::within(blocking_io::ANSWER, move || {
        let mount = mount(&stick, Access::Read)?;
        let medium = File::open(mount.path()).context("open the stick")?;
        anyhow::Ok(Signs {
            asks_for_support: support::is_asked_for(mount.path()),
            has_folder: folder(&medium.into()).is_some(),
        })
    });
    looking.await?
}

/// Mounts a stick, and finds the bundle on it: in its top directory if it has the label, else in the directory for bundles. None if there is
/// none.
async fn open(stick: &Stick) -> anyhow::Result<Option<(TransientMount, Files)>> {
    let stick = stick.clone();
    let opening = blocking_io::within(blocking_io::ANSWER, move || {
        let mount = mount(&stick, Access::Read)?;
        let medium = File::open(mount.path()).context("open the stick")?.into();
        let place = match stick.label {
            Some(_) => Some(medium),
            None => folder(&medium),
        };
        let Some(place) = place else {
            return Ok(None);
        };
        match find(place).context("read the stick")? {
            OnMedium::One(_, files) => Ok(Some((mount, files))),
            OnMedium::Nothing => Ok(None),
            OnMedium::Several(names) => {
                bail!(
                    "there are several on the stick: {}; leave one",
                    names.join(", ")
                )
            }
        }
    });
    opening.await?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::bundles::next;
    use crate::values::Digest;

    #[test]
    fn a_stick_that_is_pulled_out_before_its_end_upgrades_nothing() {
        let installer = Installer {
            reference: "r.io/installer:v0.2.0".parse().unwrap(),
            digest: Digest::of(b"image"),
            version: "v0.2.0".parse().unwrap(),
        };
        let importing = || Phase::Importing {
            image: "r.io/installer:v0.2.0".to_owned(),
            number: 1,
            count: 1,
            bytes: 0,
            total: 0,
        };
        let end = || Event::Imported(Vec::new());
        let taken = next(importing(), end()).unwrap();
        let planned = Some(installer.clone());
        assert_eq!(installer_of(planned.clone(), &taken), planned);
        assert_eq!(installer_of(None, &taken), None);
        let pulled_out = next(importing(), Event::PulledOut).unwrap();
        let ended = next(pulled_out, end()).unwrap();
        assert_eq!(installer_of(planned, &ended), None);
    }

    #[test]
    fn a_person_is_told_how_to_format_a_stick_that_cannot_be_read() {
        for (filesystem, name) in [(FileSystem::Ntfs, "NTFS"), (FileSystem::Exfat, "exFAT")] {
            let Event::Failed { reason, advice } = needs_another(filesystem) else {
                panic!("{name} is refused");
            };
            assert!(reason.contains(name), "{reason}");
            let labels =
                "FAT32 with the label INSTAR-BNDL, or as ext4 with the label INSTAR-BUNDLE";
            assert!(advice.contains(labels), "{advice}");
        }
    }
}
