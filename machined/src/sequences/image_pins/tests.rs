//! Pinned images of a real store, fetched from a registry on a loopback port.

#![allow(clippy::unwrap_used)]

use super::machine_for_tests::{configured, unbooted, unbooted_that_keeps};
use super::*;
use crate::containers::registry_for_tests::SignedRegistry;
use crate::image_collection::{collect, is_needed};
use crate::machine::Configured;
use crate::oci::Keeps;
use crate::operation_lock::Operation;
use crate::pins::{Preparation, PreparationFact};
use crate::upgrade::{Evidence, InstallerOutput, PendingUpgrade, Prepared};

const WORKER: &str = include_str!("../../../../config/tests/data/1.14/worker.yaml");

fn pins(images: &[&ImageReference]) -> String {
    let images = images.iter().map(ToString::to_string);
    let images: Vec<_> = images.collect();
    format!(
        "apiVersion: instar.dev/v1alpha1\nkind: ImagePinConfig\nimages: [{}]\n",
        images.join(", ")
    )
}

async fn one_turn(machine: &Arc<Machine>) {
    turn_judging(machine, Judging::Once).await;
}

async fn turn_judging(machine: &Arc<Machine>, judging: Judging) {
    let pace = Arc::new(Pace::default());
    turn(machine, &pace, &wanted(machine), judging).await;
}

fn state(machine: &Machine, name: &ImageReference) -> Option<State> {
    let fact = machine.store.get::<PinFact>(&name.to_string());
    fact.map(|fact| fact.state)
}

#[tokio::test]
async fn an_image_whose_index_is_signed_is_fetched_again() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let web = registry.push("web:v1", "web");
    let machine = unbooted(directory.path()).await;
    machine.set_config(configured(&[&registry.config(), &pins(&[&web.name])]));
    one_turn(&machine).await;
    let pinned = Some(State::Pinned {
        digest: web.manifest,
    });
    assert_eq!(state(&machine, &web.name), pinned);

    // It was lost with the disk; its name means another image by now.
    machine.images.remove(web.manifest).await.unwrap();
    registry.push("web:v1", "rebuilt");
    one_turn(&machine).await;
    assert_eq!(state(&machine, &web.name), pinned);
    assert!(machine.images.get(web.manifest).is_some());
}

#[tokio::test]
async fn a_record_without_an_index_gets_it_from_the_store() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let web = registry.push("web:v1", "web");
    let machine = unbooted(directory.path()).await;
    let puller = registry.puller();
    let image = puller.look_up(&web.name).await.unwrap();
    let limits = Limits::default();
    let pulled = puller.pull(&image, &machine.images, &limits).await;
    pulled.unwrap();
    // As the version before wrote it.
    let meaning = Meaning {
        digest: web.manifest,
        index: None,
        blobs: Vec::new(),
    };
    machine.pins.note(vec![(web.name.clone(), meaning)]).await;
    machine.set_config(configured(&[&registry.config(), &pins(&[&web.name])]));
    one_turn(&machine).await;
    let known = machine.pins.meaning(&web.name).unwrap().image();
    assert_eq!((known.digest, known.index), (web.manifest, Some(web.index)));
}

#[tokio::test]
async fn what_the_settled_config_pins_stays_while_another_config_is_tried() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let (web, db) = (registry.push("web:v1", "web"), registry.push("db:v1", "db"));
    let machine = unbooted(directory.path()).await;
    let settled = configured(&[&registry.config(), &pins(&[&web.name])]);
    let tried = configured(&[&registry.config(), &pins(&[&db.name])]);
    machine.set_config(settled.clone());
    one_turn(&machine).await;
    assert_eq!(machine.pins.digests(), BTreeSet::from([web.manifest]));

    let mut number = None;
    machine.begin_trial(|it| {
        number = Some(it);
        tokio::spawn(async {}).abort_handle()
    });
    machine.set_config(tried.clone());
    one_turn(&machine).await;
    let both = BTreeSet::from([web.manifest, db.manifest]);
    assert_eq!(machine.pins.digests(), both);
    assert_eq!(state(&machine, &web.name), None);
    // The trial is over, and the config before it is about to return.
    let returning = machine.lock_operation(Operation::TakeBackConfig).unwrap();
    machine.expire_trial(number.unwrap()).unwrap();
    one_turn(&machine).await;
    assert_eq!(machine.pins.digests(), both);
    machine.set_config(settled);
    drop(returning);
    // No registry is needed.
    registry.push("web:v1", "newer");
    registry.forget(&web, web.manifest);
    registry.forget(&web, web.index);
    one_turn(&machine).await;
    let pinned = State::Pinned {
        digest: web.manifest,
    };
    assert_eq!(state(&machine, &web.name), Some(pinned));
    assert_eq!(machine.pins.digests(), BTreeSet::from([web.manifest]));

    // A config that stays releases what the one before pinned.
    machine.begin_trial(|_| tokio::spawn(async {}).abort_handle());
    machine.set_config(tried);
    machine.confirm_trial();
    one_turn(&machine).await;
    assert_eq!(machine.pins.digests(), BTreeSet::from([db.manifest]));
}

#[tokio::test]
async fn files_of_extensions_of_the_settled_config_stay_while_another_config_is_tried() {
    let directory = tempfile::tempdir().unwrap();
    let machine = unbooted(directory.path()).await;
    let file = Digest::of(b"containerd");
    let documents = format!(
        "---\napiVersion: instar.dev/v1alpha1\nkind: KubernetesConfig\nimage: r.io/kubernetes:v1\n---\n\
         apiVersion: instar.dev/v1alpha1\nkind: ExtensionConfig\nname: containerd\nurl: https://r.io/containerd.raw\nsha256: {}\n",
        file.hex()
    );
    let text = format!("{WORKER}{documents}");
    let config = crate::config::parse(text.as_bytes()).unwrap().config;
    machine.set_config(Arc::new(Configured::new(text, config)));
    assert!(is_needed(&machine, file));
    machine.begin_trial(|_| tokio::spawn(async {}).abort_handle());
    machine.set_config(configured(&[]));
    assert!(is_needed(&machine, file));
    // In between, nothing is removed: there will be another round.
    let returning = machine.lock_operation(Operation::TakeBackConfig).unwrap();
    assert!(!collect(&machine).await.unwrap());
    drop(returning);
    assert!(collect(&machine).await.unwrap());
    machine.confirm_trial();
    assert!(!is_needed(&machine, file));
}

#[tokio::test]
async fn an_image_that_contradicts_its_tag_is_not_pinned() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let web = registry.push_version("web:2.6.2", "web", "2.7.0");
    let machine = unbooted(directory.path()).await;
    let by_digest = web.name.at(web.index);
    let pins = pins(&[&web.name, &by_digest]);
    machine.set_config(configured(&[&registry.config(), &pins]));
    one_turn(&machine).await;
    let failed = state(&machine, &web.name);
    let is_held = |reason: &str| reason.contains("which is held: the tag 2.6.2");
    assert!(
        matches!(&failed, Some(State::Failed { reason, .. }) if is_held(reason)),
        "{failed:?}"
    );
    let pinned = Some(State::Pinned {
        digest: web.manifest,
    });
    assert_eq!(state(&machine, &by_digest), pinned);
}

/// As after a trial that failed: the version was written, and no record of an upgrade is left.
#[tokio::test]
async fn a_version_that_waits_for_no_start_is_not_shown_as_prepared_and_its_images_stay_pinned() {
    let directory = tempfile::tempdir().unwrap();
    let machine = unbooted(directory.path()).await;
    let image: ImageReference = "r.io/os:v2".parse().unwrap();
    let mut preparation = Preparation {
        image: image.clone(),
        digest: Digest::of(b"os"),
        version: "v0.2.0".to_owned(),
        images: vec![image.clone()],
        terms: Terms::default(),
        force: false,
        during: "v0.1.0".to_owned(),
        is_written: false,
    };
    let pins = &machine.pins;
    pins.prepare(preparation.clone(), Vec::new()).await.unwrap();
    // It has yet to be written.
    preparation::end_if_gone(&machine).await;
    preparation::show(&machine);
    assert!(machine.store.get::<PreparationFact>("next").is_some());
    pins.note_written(&preparation).await;
    preparation.is_written = true;
    assert_eq!(pins.preparation(), Some(preparation));
    preparation::end_if_gone(&machine).await;
    preparation::show(&machine);
    assert!(machine.store.get::<PreparationFact>("next").is_none());
    let pinned: Vec<_> = pins.wanted([]).into_iter().map(|it| it.reference).collect();
    assert_eq!(pinned, [image]);
}

#[tokio::test]
async fn other_rules_judge_a_pinned_image_anew() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let web = registry.push("web:v1", "web");
    let machine = unbooted(directory.path()).await;
    let allowed = configured(&[&registry.config(), &pins(&[&web.name])]);
    let stranger = SignedRegistry::start();
    let denied = configured(&[&stranger.config(), &pins(&[&web.name])]);
    machine.set_config(allowed.clone());
    let first = rules(&machine);
    one_turn(&machine).await;
    let pinned = State::Pinned {
        digest: web.manifest,
    };
    assert_eq!(state(&machine, &web.name), Some(pinned.clone()));

    machine.set_config(denied);
    assert_ne!(rules(&machine), first);
    turn_judging(&machine, Judging::Anew).await;
    let failed = state(&machine, &web.name);
    assert!(matches!(failed, Some(State::Failed { .. })), "{failed:?}");
    // It stays, for rules that allow it again, and is no other image meanwhile.
    assert_eq!(machine.pins.digests(), BTreeSet::from([web.manifest]));
    machine.set_config(allowed);
    turn_judging(&machine, Judging::Anew).await;
    assert_eq!(state(&machine, &web.name), Some(pinned));

    // A new start finds the image on record, and judges it by the rules of now.
    let id = web.name.to_string();
    machine.store.remove::<PinFact>(&id);
    machine.set_config(configured(&[&stranger.config(), &pins(&[&web.name])]));
    one_turn(&machine).await;
    let failed = state(&machine, &web.name);
    assert!(matches!(failed, Some(State::Failed { .. })), "{failed:?}");
}

#[tokio::test]
async fn a_prepared_version_whose_image_is_denied_is_taken_back() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let os = registry.push("os:v2", "os");
    let machine = unbooted(directory.path()).await;
    machine.set_config(configured(&[&registry.config(), &pins(&[&os.name])]));
    one_turn(&machine).await;
    let preparation = Preparation {
        image: os.name.clone(),
        digest: os.manifest,
        version: "v0.2.0".to_owned(),
        images: vec![os.name.clone()],
        terms: Terms::default(),
        force: false,
        during: "v0.1.0".to_owned(),
        is_written: false,
    };
    let prepared = machine.pins.prepare(preparation.clone(), Vec::new()).await;
    prepared.unwrap();
    machine.pins.note_written(&preparation).await;
    let mut judge = waiting_version::Judge::default();
    assert_eq!(judge.judge(&machine).await, None);
    assert!(machine.pins.preparation().is_some());

    let stranger = SignedRegistry::start();
    machine.set_config(configured(&[&stranger.config(), &pins(&[&os.name])]));
    let busy = machine.lock_operation(Operation::TakeBackConfig).unwrap();
    assert!(judge.judge(&machine).await.is_some(), "soon again");
    assert!(machine.pins.preparation().is_some());
    drop(busy);
    judge.judge(&machine).await;
    assert_eq!(machine.pins.preparation(), None);
}

/// Its image is not in the store any more.
#[tokio::test]
async fn a_staged_version_is_judged_at_its_registry_when_rules_change() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let os = registry.push("os:v2", "os");
    let machine = unbooted(directory.path()).await;
    machine.set_config(configured(&[&registry.config()]));
    let rootfs = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let prepared = Prepared {
        delivery: InstallerOutput {
            memfd: rootfs,
            blake3: blake3::hash(b"r"),
            boot_entry: None,
            takes_sockets: false,
            signature: None,
        },
        upgrade: PendingUpgrade {
            image: os.name.to_string(),
            digest: os.manifest.to_string(),
            to: "v0.2.0".to_owned(),
            // Only the index is signed.
            evidence: Evidence {
                index: Some(os.index),
                ..Evidence::default()
            },
            ..PendingUpgrade::default()
        },
    };
    machine.upgrades.set_prepared(prepared, &machine.init).await;
    let mut judge = waiting_version::Judge::default();
    judge.judge(&machine).await;
    assert!(machine.upgrades.prepared_upgrade().is_some());

    let (here, stranger) = (registry.config(), SignedRegistry::start().config());
    // What the registry has shown is known from now on.
    registry.forget(&os, os.index);
    waiting_version::Judge::default().judge(&machine).await;
    assert!(machine.upgrades.prepared_upgrade().is_some());

    let (mirror, rules) = (here.split_once("---\n"), stranger.split_once("---\n"));
    let denied = configured(&[mirror.unwrap().0, rules.unwrap().1]);
    machine.set_config(configured(&[&here]));
    let mut number = None;
    machine.begin_trial(|it| {
        number = Some(it);
        tokio::spawn(async {}).abort_handle()
    });
    machine.set_config(denied);
    assert!(judge.judge(&machine).await.is_some(), "it is only tried");
    assert!(machine.upgrades.prepared_upgrade().is_some());
    machine.expire_trial(number.unwrap()).unwrap();
    judge.judge(&machine).await;
    assert_eq!(machine.upgrades.prepared_upgrade(), None);
}

#[tokio::test]
async fn nothing_is_removed_while_it_is_not_known_which_images_came_by_bundles() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let web = registry.push("web:v1", "web");
    let machine = unbooted(directory.path()).await;
    machine.set_config(configured(&[]));
    let (puller, limits) = (registry.puller(), Limits::default());
    let image = puller.look_up(&web.name).await.unwrap();
    let pulled = puller.pull(&image, &machine.images, &limits).await;
    pulled.unwrap();
    let record = machine.images.directory().join("bundles.json");
    std::fs::write(&record, "[{").unwrap();
    let told = format!("{:#}", collect(&machine).await.unwrap_err());
    assert!(
        told.contains("which images came by bundles is not known"),
        "{told}"
    );
    assert!(is_needed(&machine, web.manifest));
    assert!(machine.images.get(web.manifest).is_some());
    std::fs::remove_file(&record).unwrap();
    assert!(collect(&machine).await.unwrap());
    assert!(machine.images.get(web.manifest).is_none());
}

/// Its record was damaged on the disk, and its registry is gone.
#[tokio::test]
async fn a_pinned_image_is_made_again_from_its_blobs() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let web = registry.push("web:v1", "web");
    let machine = unbooted_that_keeps(directory.path(), Keeps::Blobs).await;
    machine.set_config(configured(&[&registry.config(), &pins(&[&web.name])]));
    one_turn(&machine).await;
    let pinned = Some(State::Pinned {
        digest: web.manifest,
    });
    assert_eq!(state(&machine, &web.name), pinned);
    let images = machine.images.directory().join("images");
    let record = images.join(web.manifest.hex()).join("image.json");
    std::fs::write(record, "{").unwrap();
    assert!(machine.images.get(web.manifest).is_none());
    drop(registry);
    one_turn(&machine).await;
    assert_eq!(state(&machine, &web.name), pinned);
    assert!(machine.images.get(web.manifest).is_some());
}

#[tokio::test]
async fn images_with_large_documents_have_their_turns_one_after_the_other() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let (web, db) = (registry.push("web:v1", "web"), registry.push("db:v1", "db"));
    let machine = unbooted(directory.path()).await;
    let pins = pins(&[&web.name, &db.name]);
    machine.set_config(configured(&[&registry.config(), &pins]));
    let (wanted, pace) = (wanted(&machine), Arc::new(Pace::default()));
    show_wanted(&machine, &wanted);
    let keeper = Keeper {
        machine: &machine,
        pace: &pace,
        puller: intent::puller_at_pace(machine.config().as_deref(), pace.clone()),
        judging: Judging::Once,
        most_of_documents: 1,
    };
    let pinned = |image: Digest| Some(State::Pinned { digest: image });
    keeper.see_to(&wanted).await;
    assert_eq!(state(&machine, &web.name), pinned(web.manifest));
    assert_eq!(state(&machine, &db.name), Some(State::default()));
    keeper.see_to(&wanted).await;
    assert_eq!(state(&machine, &db.name), pinned(db.manifest));
}

#[tokio::test]
async fn a_name_that_is_unpinned_and_pinned_again_means_what_its_registry_says_then() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let (web, db) = (registry.push("web:v1", "web"), registry.push("db:v1", "db"));
    let machine = unbooted(directory.path()).await;
    machine.set_config(configured(&[&registry.config(), &pins(&[&db.name])]));
    let call = crate::pins::ByCall {
        terms: Terms::default(),
        during: "v0.1.0".to_owned(),
        for_upgrade: false,
    };
    let both = vec![web.name.clone(), db.name.clone()];
    machine.pins.pin(both.clone(), &call).await.unwrap();
    one_turn(&machine).await;
    let (newer_web, _) = (
        registry.push("web:v1", "newer"),
        registry.push("db:v1", "newer"),
    );
    for name in &both {
        assert!(unpin(&machine, name).await && !unpin(&machine, name).await);
    }
    // Before the next look at what is pinned.
    machine.pins.pin(both, &call).await.unwrap();
    one_turn(&machine).await;
    // The config has pinned the other one all the time.
    let expected = BTreeSet::from([newer_web.manifest, db.manifest]);
    assert_eq!(machine.pins.digests(), expected);
}
