//! Containers that follow their images' names, on a machine that has not booted, with a registry on a loopback port.

#![allow(clippy::unwrap_used)]

use std::os::fd::OwnedFd;

use super::*;
use crate::containers::registry_for_tests::{Pushed, SignedRegistry};
use crate::containers::{ContainerSpec, Runtime};
use crate::machine::TrialNumber;
use crate::sequences::image_pins::machine_for_tests::{configured, unbooted};
use crate::services::workload_for_tests::{definition, running};
use crate::services::{Cgroup, ContainerWorkload, Workload as _};

/// The longest wait for something that has to come.
const SOON: Duration = Duration::from_secs(60);

fn container(name: &str, window: &str) -> String {
    format!(
        "apiVersion: v1alpha1\nkind: ContainerConfig\nname: {name}\nimage: r.io/{name}:v1\n---\n\
         apiVersion: instar.dev/v1alpha1\nkind: ContainerUpdateConfig\nname: {name}\nhealthy: 1s\n{window}"
    )
}

/// Returns a config of these containers, whose trials last a second.
fn config(registry: &SignedRegistry, containers: &[String]) -> Arc<Configured> {
    let mut documents = vec![registry.config()];
    documents.extend_from_slice(containers);
    let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
    configured(&documents)
}

fn digests(image: &Pushed) -> ImageDigests {
    ImageDigests {
        digest: image.manifest,
        index: Some(image.index),
    }
}

fn found(image: &Pushed) -> Release {
    release(digests(image), &ImageConfig::default())
}

fn waiting(image: &Pushed) -> Standing {
    Standing::Waiting {
        found: found(image),
        reason: Reason::Window,
    }
}

/// Puts one image in force, and has another one wait for its window.
async fn has_waiting(machine: &Machine, container: &str, before: &Pushed, now: &Pushed) {
    let images = &machine.images_in_force;
    images.set(container, &before.name, digests(before)).await;
    let event = Event::Found {
        found: found(now),
        verdict: crate::containers::update::Verdict::Rebuild,
    };
    let updates = &machine.image_updates;
    updates.report(container, &now.name, event).await;
}

/// Puts the image that waits for `web` on trial, in this boot of the kernel.
async fn begin_trial(machine: &Machine, old: &Pushed, new: &Pushed, boot: &str) {
    let switch = Event::MaySwitch {
        in_force: digests(old),
        boot: boot.to_owned(),
    };
    let switch = machine.image_updates.report("web", &new.name, switch);
    assert_eq!(switch.await, Some(Act::Switch(digests(new))));
    let in_force = &machine.images_in_force;
    in_force.set("web", &new.name, digests(new)).await;
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waits = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, waits).await.expect(what);
}

/// The first container of a config that follows its image's name.
fn following<'a>(machine: &'a Arc<Machine>, configured: &'a Arc<Configured>) -> Following<'a> {
    let (container, updates) = followed(configured).next().unwrap();
    Following {
        machine,
        configured,
        container,
        updates,
    }
}

/// Two images, one after the other behind the same name.
fn old_and_new(registry: &SignedRegistry) -> (Pushed, Pushed) {
    let old = registry.push("web:v1", "old");
    (old, registry.push("web:v1", "new"))
}

#[tokio::test]
async fn an_image_that_waits_is_fetched_by_the_index_that_is_signed() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let web = registry.push("web:v1", "web");
    let machine = unbooted(directory.path()).await;
    let config = config(&registry, &[container("web", "")]);
    machine.set_config(config.clone());
    // The name means another one by now.
    registry.push("web:v1", "newer");
    let following = following(&machine, &config);
    let fetched = following.fetch(&found(&web)).await.unwrap();
    assert_eq!(fetched.digest(), web.manifest);
    assert!(machine.images.find(&web.name).is_none());
}

#[tokio::test]
async fn the_index_behind_a_name_is_noted_at_each_look() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let web = registry.push("web:v1", "web");
    let machine = unbooted(directory.path()).await;
    machine.set_config(config(&registry, &[container("web", "")]));
    // As a record of an older version says it.
    let known = ImageDigests {
        digest: web.manifest,
        index: None,
    };
    machine.images_in_force.set("web", &web.name, known).await;
    turn(&machine, &mut Looks::new(), &Switching::default()).await;
    let known = machine.images_in_force.image("web", &web.name);
    assert_eq!(known, Some(digests(&web)));
    assert_eq!(machine.image_updates.last_look("web").unwrap().error, None);
}

/// The disk with the images was lost, and the name means another image by now.
#[tokio::test]
async fn a_container_starts_again_from_its_image_whose_index_is_signed() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let web = registry.push("web:v1", "web");
    let machine = unbooted(directory.path()).await;
    let workload = workload(&machine, &registry, &web.name);
    workload.prepare().await.unwrap();
    let known = machine.images_in_force.image("web", &web.name);
    assert_eq!(known, Some(digests(&web)));

    machine.images.remove(web.manifest).await.unwrap();
    registry.push("web:v1", "newer");
    workload.prepare().await.unwrap();
    assert!(machine.images.get(web.manifest).is_some());
}

/// The container `web`, of this image.
fn workload(
    machine: &Machine,
    registry: &SignedRegistry,
    image: &ImageReference,
) -> ContainerWorkload {
    let puller = Arc::new(registry.puller());
    let runtime = machine.images.directory().join("crun");
    ContainerWorkload {
        spec: ContainerSpec::new("web".parse().unwrap(), String::new()),
        image: image.clone(),
        puller: Box::new(move || puller.clone()),
        images: machine.images.clone(),
        stop_timeout: Box::new(Duration::default),
        in_force: machine.images_in_force.clone(),
        runtime: Runtime::new(runtime.clone(), runtime.clone(), runtime),
        init: machine.init.clone(),
        kept_output: None::<OwnedFd>.into(),
        unattended: None.into(),
        cgroup: Cgroup::for_container("web", true).unwrap().into(),
        keeps: Box::new(|| true),
        prepared: None.into(),
        told_whole: None.into(),
    }
}

#[tokio::test]
async fn an_image_that_contradicts_its_tag_neither_starts_nor_replaces_the_one_that_runs() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let machine = unbooted(directory.path()).await;
    let push = |content, version| registry.push_version("web:2.6.2", content, version);
    let wrong = push("wrong", "2.7.0");
    let web = workload(&machine, &registry, &wrong.name);
    let held = format!("{:#}", web.prepare().await.unwrap_err());
    let told = "the image's label says v2.7.0; name the image by its digest";
    assert!(held.contains(told), "{held}");
    assert!(machine.images.list().unwrap().is_empty());
    let in_force = || machine.images_in_force.get("web", &wrong.name);
    assert_eq!(in_force(), None);

    // By its digest it runs.
    let by_digest = wrong.name.at(wrong.index);
    let by_digest = workload(&machine, &registry, &by_digest);
    by_digest.prepare().await.unwrap();

    let right = push("right", "2.6.2");
    web.prepare().await.unwrap();
    assert_eq!(in_force(), Some(right.manifest));
    // A restart by an operator looks the name up again.
    push("wrong again", "2.7.0");
    web.renew().await.unwrap();
    assert_eq!(in_force(), Some(right.manifest));
}

#[tokio::test]
async fn a_trial_is_watched_during_a_pull_and_after_it_the_config_of_then_counts() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let (old, new) = old_and_new(&registry);
    let (old_db, new_db) = (registry.push("db:v1", "old"), registry.push("db:v1", "new"));
    registry.hold_layer(&new_db, true);
    let machine = unbooted(directory.path()).await;
    // The one that is pulled comes first.
    let (db, web) = (container("db", ""), container("web", ""));
    machine.set_config(config(&registry, &[db, web.clone()]));
    machine.enter(MachineStage::Running);
    has_waiting(&machine, "db", &old_db, &new_db).await;
    has_waiting(&machine, "web", &old, &new).await;
    begin_trial(&machine, &old, &new, "one").await;
    let service = machine
        .services
        .add(definition("web", Some(Duration::ZERO)));
    service.unwrap().start();
    machine.settle();
    let keeping = tokio::spawn(keep(machine.clone()));

    until("db is pulled", || registry.was_asked_for_layer(&new_db)).await;
    let standing = |name: &str, image: &Pushed| machine.image_updates.standing(name, &image.name);
    until("the trial ends", || {
        standing("web", &new) == Standing::Current
    })
    .await;
    assert!(machine.images.get(new_db.manifest).is_none());
    assert_eq!(standing("db", &new_db), waiting(&new_db));

    // Only a window starts it from now on, and without the time none is open.
    let window = "window: {start: \"02:00\", length: 1h, utcOffset: \"+00:00\"}\n";
    machine.set_config(config(&registry, &[container("db", window), web]));
    registry.hold_layer(&new_db, false);
    until("db is here", || {
        machine.images.get(new_db.manifest).is_some()
    })
    .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(standing("db", &new_db), waiting(&new_db));
    let in_force = machine.images_in_force.get("db", &old_db.name);
    assert_eq!(in_force, Some(old_db.manifest));
    keeping.abort();
}

#[tokio::test]
async fn what_the_settled_config_follows_stays_known_while_another_config_is_tried() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let (old, new) = old_and_new(&registry);
    let machine = unbooted(directory.path()).await;
    let (settled, tried) = (
        config(&registry, &[container("web", "")]),
        config(&registry, &[]),
    );
    machine.set_config(settled.clone());
    has_waiting(&machine, "web", &old, &new).await;
    let mut number: Option<TrialNumber> = None;
    let mut begin = |machine: &Machine| {
        machine.begin_trial(|it| {
            number = Some(it);
            tokio::spawn(async {}).abort_handle()
        });
        machine.set_config(tried.clone());
        number.unwrap()
    };
    let turn = async || {
        turn(&machine, &mut Looks::new(), &Switching::default()).await;
        machine.image_updates.standing("web", &new.name)
    };
    let number = begin(&machine);
    assert_eq!(turn().await, waiting(&new));
    // The trial is over, and the config before it is about to return.
    let returning = machine.lock_operation(Operation::TakeBackConfig).unwrap();
    machine.expire_trial(number).unwrap();
    assert_eq!(turn().await, waiting(&new));
    machine.set_config(settled);
    drop(returning);
    assert_eq!(machine.image_updates.needed(), [new.manifest].into());

    begin(&machine);
    machine.confirm_trial();
    assert_eq!(turn().await, Standing::Current);
    assert!(machine.image_updates.all().is_empty());
}

/// Its trial has lasted far too long, so that it fails at the next view.
fn late_trial(of: &Pushed) -> Trial {
    let begun = Instant::now().checked_sub(Duration::from_secs(600));
    Trial {
        digest: of.manifest,
        begun: begun.unwrap(),
        begun_at: SystemTime::now(),
        up_since: None,
    }
}

#[tokio::test]
async fn a_container_that_its_operator_stopped_stays_down_and_its_trial_waits() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let (old, new) = old_and_new(&registry);
    let machine = unbooted(directory.path()).await;
    let config = config(&registry, &[container("web", "")]);
    machine.set_config(config.clone());
    machine.enter(MachineStage::Running);
    has_waiting(&machine, "web", &old, &new).await;
    let service = running(&machine.services, "web", Some(Duration::ZERO)).await;
    machine.services.stop("web").await.unwrap();
    let following = following(&machine, &config);
    let (found, switching) = (found(&new), Switching::default());
    let switch = async || {
        let switching = following.switch_if_open(digests(&old), &found, &switching);
        switching.await
    };
    assert_eq!(switch().await, LONGEST_SLEEP);
    assert_eq!(following.standing(), waiting(&new));
    assert!(!service.is_wanted_up() && !service.status().is_up());

    service.start();
    assert_eq!(switch().await, TRIAL_VIEW);
    machine.services.stop("web").await.unwrap();
    let seen = following.view(Some(late_trial(&new)), &switching).await;
    assert!(seen.is_none() && !service.status().is_up());
    assert!(matches!(following.standing(), Standing::OnTrial { .. }));
    service.start();
    service.up().await;
    let seen = following.view(None, &switching).await;
    assert!(seen.is_some_and(|trial| trial.up_since.is_some()));
    // Wanted up, it has to prove itself.
    machine.services.stop("web").await.unwrap();
    service.start();
    following.view(Some(late_trial(&new)), &switching).await;
    assert!(matches!(following.standing(), Standing::Returned { .. }));
}

/// The previous process takes its time to end.
#[tokio::test]
async fn a_container_that_is_stopped_while_its_new_image_starts_stays_down() {
    let directory = tempfile::tempdir().unwrap();
    let machine = unbooted(directory.path()).await;
    let service = running(&machine.services, "web", Some(Duration::from_secs(1))).await;
    let services = machine.services.clone();
    let restart = tokio::spawn(async move { services.restart_if_wanted("web").await });
    until("it ends", || !service.status().is_up()).await;
    machine.services.stop("web").await.unwrap();
    restart.await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!service.is_wanted_up() && !service.status().is_up());
    service.start();
    service.up().await;
    machine.services.restart_if_wanted("web").await.unwrap();
    service.up().await;
}

/// Records are written and the previous process ends while the image is on trial already.
#[tokio::test]
async fn a_trial_counts_from_the_start_of_its_image() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let (old, new) = old_and_new(&registry);
    let machine = unbooted(directory.path()).await;
    machine.set_config(config(&registry, &[container("web", "")]));
    machine.enter(MachineStage::Running);
    machine.image_updates.open(directory.path()).unwrap();
    machine.images_in_force.open(directory.path()).unwrap();
    has_waiting(&machine, "web", &old, &new).await;
    running(&machine.services, "web", Some(Duration::from_secs(4))).await;
    machine.settle();
    let keeping = tokio::spawn(keep(machine.clone()));
    let standing = || machine.image_updates.standing("web", &new.name);
    until("its trial", || {
        matches!(standing(), Standing::OnTrial { .. })
    })
    .await;
    let begun = Instant::now();
    until("its proof", || standing() == Standing::Current).await;
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(4), "{took:?}");
    let in_force = machine.images_in_force.image("web", &new.name);
    assert_eq!(in_force, Some(digests(&new)));
    keeping.abort();
}

/// An image that makes the kernel panic.
#[tokio::test]
async fn an_image_whose_trial_takes_the_machine_down_is_gone_back_from() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let (old, new) = old_and_new(&registry);
    let machine = unbooted(directory.path()).await;
    machine.set_config(config(&registry, &[container("web", "")]));
    has_waiting(&machine, "web", &old, &new).await;
    begin_trial(&machine, &old, &new, "one").await;
    let (updates, in_force) = (&machine.image_updates, &machine.images_in_force);
    // Another boot, and restarts of machined in it.
    for _ in 0..5 {
        count_boot(&machine).await;
    }
    let booted = Event::Booted("two".to_owned());
    updates.report("web", &new.name, booted).await;
    assert_eq!(in_force.get("web", &new.name), Some(new.manifest));
    count_boot(&machine).await;
    assert_eq!(in_force.get("web", &new.name), Some(old.manifest));
    let why = "the machine restarted 3 times during its trial";
    let Standing::Returned { failed, why: told } = updates.standing("web", &new.name) else {
        panic!("{:?}", updates.standing("web", &new.name));
    };
    assert_eq!((failed, told.as_str()), (found(&new), why));
}

#[tokio::test]
async fn a_trial_that_another_image_has_ended_is_not_gone_back_from() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let (old, new) = old_and_new(&registry);
    let machine = unbooted(directory.path()).await;
    has_waiting(&machine, "web", &old, &new).await;
    begin_trial(&machine, &old, &new, "one").await;
    let next = registry.push("web:v2", "next");
    let in_force = &machine.images_in_force;
    in_force.set("web", &next.name, digests(&next)).await;
    for boot in ["two", "three", "four"] {
        let booted = Event::Booted(boot.to_owned());
        let updates = &machine.image_updates;
        updates.report("web", &new.name, booted).await;
    }
    count_boot(&machine).await;
    assert_eq!(in_force.get("web", &next.name), Some(next.manifest));
}

/// Two mirrors, one of which is late: the name means one image and the other in turn.
#[tokio::test]
async fn an_image_that_failed_is_not_tried_again_when_it_comes_back_behind_its_name() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let (old, new) = old_and_new(&registry);
    let machine = unbooted(directory.path()).await;
    machine.set_config(config(&registry, &[container("web", "")]));
    has_waiting(&machine, "web", &old, &new).await;
    begin_trial(&machine, &old, &new, "one").await;
    let in_force = &machine.images_in_force;
    in_force.set("web", &new.name, digests(&old)).await;
    let updates = &machine.image_updates;
    for event in [Event::Failed("it died".to_owned()), Event::Confirmed] {
        updates.report("web", &new.name, event).await;
    }
    assert_eq!(updates.standing("web", &new.name), Standing::Current);
    turn(&machine, &mut Looks::new(), &Switching::default()).await;
    let standing = updates.standing("web", &new.name);
    let Standing::Waiting { found, reason } = &standing else {
        panic!("{standing:?}");
    };
    assert_eq!(found.digest, new.manifest);
    let expected = Reason::Approval("it failed here: it died".to_owned());
    assert_eq!(*reason, expected);
}

/// Returns the digest of the image that has this name in the store.
fn named(machine: &Machine, name: &ImageReference) -> Option<Digest> {
    machine.images.find(name).map(|image| image.digest())
}

#[tokio::test]
async fn a_restart_without_a_registry_starts_the_image_that_has_proved_itself() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let old = registry.push("web:v1", "old");
    let machine = unbooted(directory.path()).await;
    let config = config(&registry, &[container("web", "")]);
    machine.set_config(config.clone());
    machine.enter(MachineStage::Running);
    let web = workload(&machine, &registry, &old.name);
    web.prepare().await.unwrap();
    let new = registry.push("web:v1", "new");
    has_waiting(&machine, "web", &old, &new).await;
    let service = running(&machine.services, "web", Some(Duration::ZERO)).await;
    let following = following(&machine, &config);
    let (found, switching) = (found(&new), Switching::default());
    let switched = following.switch_if_open(digests(&old), &found, &switching);
    assert_eq!(switched.await, TRIAL_VIEW);
    assert_eq!(named(&machine, &old.name), Some(old.manifest));

    service.up().await;
    let mut trial = following.view(None, &switching).await.unwrap();
    trial.up_since = Instant::now().checked_sub(following.updates.healthy);
    following.view(Some(trial), &switching).await;
    assert_eq!(following.standing(), Standing::Current);
    assert_eq!(named(&machine, &old.name), Some(new.manifest));
    registry.fall_silent();
    tokio::time::pause();
    web.renew().await.unwrap();
    let in_force = machine.images_in_force.get("web", &old.name);
    assert_eq!(in_force, Some(new.manifest));
}

/// As earlier versions left the store: the previous image has the name.
#[tokio::test]
async fn an_image_that_its_registry_confirms_gets_the_name_in_the_store() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let old = registry.push("web:v1", "old");
    let machine = unbooted(directory.path()).await;
    machine.set_config(config(&registry, &[container("web", "")]));
    let web = workload(&machine, &registry, &old.name);
    web.prepare().await.unwrap();
    let new = registry.push("web:v1", "new");
    let (puller, limits) = (registry.puller(), Limits::default());
    let resolved = puller.look_up(&new.name.at(new.index)).await.unwrap();
    let pulled = puller.pull(&resolved, &machine.images, &limits).await;
    pulled.unwrap();
    let in_force = &machine.images_in_force;
    in_force.set("web", &new.name, digests(&new)).await;
    let look = async || turn(&machine, &mut Looks::new(), &Switching::default()).await;
    // A bundle has brought the other one, for a restart without a registry.
    let bundle = Digest::of(b"bundle");
    let bring = |taken: &mut crate::bundles::Taken| taken.brought(old.manifest);
    machine.bundles.kept.change(bundle, bring).unwrap();
    look().await;
    assert_eq!(named(&machine, &new.name), Some(old.manifest));
    std::fs::remove_file(machine.images.directory().join("bundles.json")).unwrap();
    look().await;
    assert_eq!(named(&machine, &new.name), Some(new.manifest));
}

#[tokio::test]
async fn a_lost_image_that_is_pulled_again_leaves_the_name_to_a_newer_one() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let old = registry.push("web:v1", "old");
    let machine = unbooted(directory.path()).await;
    let web = workload(&machine, &registry, &old.name);
    web.prepare().await.unwrap();
    let new = registry.push("web:v1", "new");
    let (puller, limits) = (registry.puller(), Limits::default());
    let resolved = puller.look_up(&new.name).await.unwrap();
    let pulled = puller.pull(&resolved, &machine.images, &limits).await;
    pulled.unwrap();
    machine.images.remove(old.manifest).await.unwrap();
    web.prepare().await.unwrap();
    assert!(machine.images.get(old.manifest).is_some());
    assert_eq!(named(&machine, &new.name), Some(new.manifest));
}
