//! Which services end with an upgrade, and which live on: told before, taken back, and carried out.

use tokio::time::timeout;

use super::lasting::{Lasting, of_lasting};
use super::*;
use crate::services::workload_for_tests::running;

/// Starts a service that lives through a change of generations, and one that ends with its generation.
async fn one_that_lives_and_one_that_ends(services: &Services) -> (Service, Service) {
    let mut workload = Lasting::default();
    let lives = services.add(of_lasting("lives", &workload)).unwrap();
    workload.ends = Some("it mounts the system");
    let ends = services.add(of_lasting("ends", &workload)).unwrap();
    for service in [&lives, &ends] {
        service.start();
        service.up().await;
    }
    (lives, ends)
}

#[tokio::test(start_paused = true)]
async fn who_ends_with_an_upgrade_is_told_so_once_and_before() {
    let services = services();
    let (lives, ends) = one_that_lives_and_one_that_ends(&services).await;
    let fates = services.fates(&KEPT).into_iter();
    let fates: Vec<(String, bool)> = fates
        .map(|(service, fate)| (service.definition().id.clone(), fate.is_ok()))
        .collect();
    assert_eq!(
        fates,
        [("ends".to_owned(), false), ("lives".to_owned(), true)]
    );
    // The question alone changes nothing.
    assert_eq!(messages(&ends).len(), 3);
    services.tell_ends(&KEPT);
    assert_eq!(ends.status().phase, Phase::Running);
    services.leave_workloads(None, &KEPT).await;
    assert_eq!(services.left(), ["lives"]);
    // The next generation tells it as well.
    let why = ("ends".to_owned(), "it mounts the system".to_owned());
    assert_eq!(services.ended(), BTreeMap::from([why]));
    let told = messages(&ends);
    assert_eq!(
        told[2..],
        [
            "started as process 1",
            "ends with this upgrade: it mounts the system",
            "asked to end",
            "stopped",
        ]
    );
    assert_eq!(messages(&lives).last().unwrap(), "started as process 1");
}

/// The installer fails, for example.
#[tokio::test(start_paused = true)]
async fn an_upgrade_that_fails_takes_back_that_services_end() {
    let services = services();
    let (lives, ends) = one_that_lives_and_one_that_ends(&services).await;
    services.tell_ends(&KEPT);
    services.tell_run_on();
    services.tell_run_on();
    assert_eq!(
        messages(&ends)[2..],
        [
            "started as process 1",
            "ends with this upgrade: it mounts the system",
            "runs on: the upgrade failed",
        ]
    );
    assert_eq!(messages(&lives).last().unwrap(), "started as process 1");
    assert_eq!(ends.status().starts, 1, "announcements are no starts");
    // With the next upgrade it ends all the same.
    services.tell_ends(&KEPT);
    assert!(messages(&ends).last().unwrap().starts_with(ENDS));
    services.leave_workloads(None, &KEPT).await;
    services.tell_run_on();
    assert_eq!(messages(&ends).last().unwrap(), "stopped");
    assert!(!lives.status().ended_by_machine);
}

/// It says more than the workload, which may have been started as one that ends only because the config said so. Of a part of the
/// generation, such as the dashboard, it knows nothing.
#[tokio::test(start_paused = true)]
async fn the_config_of_the_next_generation_has_the_first_word() {
    let services = services();
    let _both = one_that_lives_and_one_that_ends(&services).await;
    running(&services, "part", EIGHT).await;
    let named = |name: &str| match name {
        "none" => Ok(()),
        name => anyhow::bail!("{name} is to end"),
    };
    let fates = services.fates(&named).into_iter();
    let fates: Vec<String> = fates
        .map(|(_, fate)| fate.unwrap_err().to_string())
        .collect();
    assert_eq!(
        fates,
        [
            "ends is to end",
            "lives is to end",
            "it is a part of the generation"
        ]
    );
    services.leave_workloads(None, &named).await;
    assert!(services.left().is_empty());
}

/// The output of one that lives on waits in its pipe while nobody reads it.
#[tokio::test(start_paused = true)]
async fn one_that_lives_on_is_looked_after_until_the_others_have_ended() {
    let services = services();
    let (lives, ends) = one_that_lives_and_one_that_ends(&services).await;
    let leaving = services.leave_workloads(None, &KEPT);
    tokio::pin!(leaving);
    let in_time = timeout(Duration::from_secs(4), &mut leaving).await;
    assert!(in_time.is_err(), "the other one takes its time");
    assert!(!lives.status().left);
    leaving.await;
    assert!(lives.status().left);
    assert_eq!(ends.status().phase, Phase::Finished);
}

/// A generation that gives itself up has until then, and what lives on is put away all the same.
#[tokio::test(start_paused = true)]
async fn one_that_takes_too_long_to_end_does_not_keep_the_others_from_being_left() {
    let services = services();
    let _both = one_that_lives_and_one_that_ends(&services).await;
    let begun = Instant::now();
    services
        .leave_workloads(Some(begun + Duration::from_secs(2)), &KEPT)
        .await;
    assert!(begun.elapsed() < Duration::from_secs(4));
    assert_eq!(services.left(), ["lives"]);
}
