#![allow(clippy::unwrap_used)]

use super::*;
use crate::containers::digest::Digest;
use crate::containers::manifest::ImageConfig;

fn name() -> ContainerName {
    "web".parse().unwrap()
}

#[tokio::test]
async fn a_process_is_watched_and_signalled_by_its_pidfd() {
    let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    let running = RunningContainer::watch(&name(), pid).unwrap();
    assert_eq!(running.pid(), child.id().unwrap());
    let early = tokio::time::timeout(Duration::from_millis(50), running.wait()).await;
    assert!(early.is_err(), "it runs");
    running.kill(Signal::TERM).unwrap();
    running.wait().await.unwrap();
    running.wait().await.unwrap();
    child.wait().await.unwrap();
    running.kill(Signal::KILL).unwrap();
    let gone = RunningContainer::watch(&name(), pid).unwrap_err();
    assert_eq!(Errno::from_io_error(&gone), Some(Errno::SRCH));
}

fn stored_image(store: &ImageStore) -> PulledImage {
    let incoming = store.incoming(Digest::of(b"image")).unwrap();
    let config = ImageConfig {
        entrypoint: vec!["/app".into()],
        ..ImageConfig::default()
    };
    incoming
        .commit(&"r.io/a".parse().unwrap(), config, 0, 0)
        .unwrap()
}

fn streams() -> Streams {
    let null = || fs::File::create("/dev/null").unwrap().into();
    Streams {
        stdout: null(),
        stderr: null(),
    }
}

/// Whatever goes wrong on the way, nothing is left: no bundle, no mount, no layer.
#[tokio::test]
async fn a_failed_start_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().join("store"));
    let image = stored_image(&store);
    let run = directory.path().join("run");
    let runtime = Runtime::new(
        "/nonexistent/crun".into(),
        directory.path().join("state"),
        run.clone(),
    );
    let spec = ContainerSpec::new(name(), "/web".into());
    let error = runtime
        .start(&spec, &image, &store, &HostView::default(), streams(), &[])
        .await
        .unwrap_err();
    // Without the right to mount it ends a step earlier.
    assert!(
        matches!(
            error,
            RuntimeError::Program { .. } | RuntimeError::Rootfs { .. }
        ),
        "{error}"
    );
    let mut nameless = spec.clone();
    nameless.entrypoint = vec![String::new()];
    let error = runtime
        .start(
            &nameless,
            &image,
            &store,
            &HostView::default(),
            streams(),
            &[],
        )
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            RuntimeError::Spec {
                source: SpecError::NoProgram,
                ..
            }
        ),
        "{error}"
    );
    assert!(runtime.names().unwrap().is_empty());
    assert!(!store.container_directory("web").exists());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(run.to_str().unwrap()));
}

#[tokio::test]
async fn what_is_not_there_is_not_adopted_and_is_deleted_already() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().join("store"));
    let runtime = Runtime::new(
        "/nonexistent/crun".into(),
        directory.path().join("state"),
        directory.path().join("run"),
    );
    assert!(runtime.adopt(&name()).await.unwrap().is_none());
    runtime.delete(&name(), &store).await.unwrap();
}

/// A runtime that refuses, and says why in its log, as crun does.
#[tokio::test]
async fn the_runtimes_own_words_are_in_the_error() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("refuses");
    fs::write(
        &program,
        "#!/bin/sh\necho \"cgroups v2 is missing\" >> \"$5\"\nexit 3\n",
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let state = directory.path().join("state");
    fs::create_dir_all(state.join("web")).unwrap();
    let runtime = Runtime::new(program, state, directory.path().join("run"));
    for _ in 0..2 {
        let error = runtime.adopt(&name()).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "crun state of container web failed: cgroups v2 is missing"
        );
    }
}
