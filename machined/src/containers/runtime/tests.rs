#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../../tests/namespace/mod.rs"]
mod namespace;

use namespace::{block_on, isolated};

use super::*;
use crate::oci::manifest::ImageConfig;
use crate::oci::{Keeps, NewImage, Policy};
use crate::values::{Digest, ImageReference};

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

fn stored_image(store: &ImageStore) -> VerifiedImage {
    let incoming = store.incoming(Digest::of(b"image")).unwrap();
    let config = ImageConfig {
        entrypoint: vec!["/app".into()],
        ..ImageConfig::default()
    };
    let name: ImageReference = "r.io/a".parse().unwrap();
    let image = incoming.commit(NewImage {
        name: name.clone(),
        named_digest: Digest::of(b"image"),
        config,
        download_bytes: 0,
        unpacked_bytes: 0,
        blobs: Default::default(),
    });
    Policy::default().admit(&name, image.unwrap()).unwrap()
}

fn streams() -> Streams {
    let null = || fs::File::create("/dev/null").unwrap().into();
    Streams {
        stdout: null(),
        stderr: null(),
    }
}

/// After a failed start nothing is left: no bundle, no mount, no layer. The root filesystem is mounted, so this needs a namespace
/// where an ordinary user may mount.
#[test]
fn a_failed_start_leaves_nothing() {
    isolated(
        "containers::runtime::tests::a_failed_start_leaves_nothing",
        &["--user", "--map-root-user", "--mount"],
        || block_on(fail_to_start()),
    );
}

async fn fail_to_start() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().join("store"), Keeps::ImagesAlone);
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
    assert!(matches!(error, RuntimeError::Program { .. }), "{error}");
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
async fn a_container_that_is_absent_is_not_adopted_and_deleting_it_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().join("store"), Keeps::ImagesAlone);
    let runtime = Runtime::new(
        "/nonexistent/crun".into(),
        directory.path().join("state"),
        directory.path().join("run"),
    );
    assert!(runtime.adopt(&name()).await.unwrap().is_none());
    runtime.delete(&name(), &store).await.unwrap();
}

/// crun is a script that fails and writes its reason to its log, as crun does.
#[tokio::test]
async fn the_runtimes_own_words_are_in_the_error() {
    let directory = tempfile::tempdir().unwrap();
    let program = script(
        directory.path(),
        "echo \"cgroups v2 is missing\" >> \"$5\"\nexit 3\n",
    );
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

/// Makes a script that stands in for crun. Another process writes it: a file that is open for writing cannot be run, and a child
/// that another test forks meanwhile would keep it open for a moment.
fn script(directory: &Path, text: &str) -> PathBuf {
    use std::io::Write;
    let program = directory.join("crun");
    let mut install = std::process::Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(&program)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = install.stdin.take().unwrap();
    write!(stdin, "#!/bin/sh\n{text}").unwrap();
    drop(stdin);
    assert!(install.wait().unwrap().success());
    program
}

fn runtime_of(directory: &Path, text: &str) -> Runtime {
    let run = directory.join("run");
    fs::create_dir_all(run.join("web")).unwrap();
    Runtime::new(script(directory, text), directory.join("state"), run)
}

fn ping() -> Vec<String> {
    vec!["/bin/database".to_owned(), "ping".to_owned()]
}

#[tokio::test]
async fn a_program_in_a_container_is_heard_when_it_fails() {
    let directory = tempfile::tempdir().unwrap();
    let answer = "[ \"$6 $9 ${10} ${11}\" = 'exec web /bin/database ping' ] || exit 9\n";
    let runtime = runtime_of(directory.path(), answer);
    runtime.exec(&name(), &ping()).await.unwrap();
    let runtime = runtime_of(directory.path(), "echo 'it sleeps' >&2\nexit 3\n");
    let error = runtime.exec(&name(), &ping()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "/bin/database ping in container web failed (exit status: 3): it sleeps"
    );
    let runtime = runtime_of(
        directory.path(),
        "echo 'no such program' >> \"$5\"\nexit 1\n",
    );
    let error = runtime.exec(&name(), &ping()).await.unwrap_err();
    assert!(error.to_string().ends_with(": no such program"), "{error}");
}

#[tokio::test]
async fn a_program_in_a_container_that_hangs_is_ended() {
    let directory = tempfile::tempdir().unwrap();
    let hangs = "sleep 1000 &\necho $! > \"$8\"\nwait\n";
    let runtime = runtime_of(directory.path(), hangs);
    let pid_file = directory.path().join("run/web/exec.pid");
    let command = ping();
    let pid: u32 = {
        let container = name();
        let running = runtime.exec(&container, &command);
        let started = async {
            loop {
                if let Ok(pid) = fs::read_to_string(&pid_file)
                    .unwrap_or_default()
                    .trim()
                    .parse()
                {
                    return pid;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            ended = running => panic!("{ended:?}"),
            pid = started => pid,
        }
    };
    assert!(!pid_file.exists());
    let process = PathBuf::from(format!("/proc/{pid}"));
    // The process's adopter reaps it in its own time; a zombie has no program.
    let gone = || fs::read_link(process.join("exe")).is_err();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !gone() {
        assert!(Instant::now() < deadline, "{pid} runs on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The error holds the end of a program's output, however long it is. The rest is kept nowhere.
#[tokio::test]
async fn of_a_flood_the_last_words_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let floods =
        "head -c 200000 /dev/zero | tr '\\0' y >&2\necho >&2\necho 'it gives up' >&2\nexit 3\n";
    let runtime = runtime_of(directory.path(), floods);
    let error = runtime.exec(&name(), &ping()).await.unwrap_err();
    let RuntimeError::Exec { said, .. } = &error else {
        panic!("{error}");
    };
    assert!(said.ends_with("y; it gives up"), "{error}");
    assert!(said.len() < LOG_TAIL + 10, "{}", said.len());
}

/// A program that has ended is not waited for, even if a child of it keeps its standard error open.
#[tokio::test]
async fn what_a_program_leaves_behind_is_not_heard() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime_of(
        directory.path(),
        "sleep 20 &\necho 'it sleeps' >&2\nexit 3\n",
    );
    let begun = Instant::now();
    let error = runtime.exec(&name(), &ping()).await.unwrap_err();
    assert!(error.to_string().ends_with(": it sleeps"), "{error}");
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
}

/// Each health check that crun cannot run adds a line to crun's log, which is in memory. The log has to stay bounded.
#[tokio::test]
async fn the_runtimes_log_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = runtime_of(
        directory.path(),
        "echo 'no such program' >> \"$5\"\nexit 1\n",
    );
    let log = runtime.log(&name());
    fs::write(&log, vec![b'x'; 1 << 20]).unwrap();
    let error = runtime.exec(&name(), &ping()).await.unwrap_err();
    assert!(error.to_string().ends_with(": no such program"), "{error}");
    assert!(length_of(&log) < 100);
}

#[test]
fn what_is_secret_is_roots_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let file = directory.path().join("config.json");
    write_secret(&file, "{}").unwrap();
    assert_eq!(mode(&file), 0o600);
    let (state, run) = (directory.path().join("state"), directory.path().join("run"));
    let runtime = Runtime::new("crun".into(), state.clone(), run.clone());
    runtime.make_directories().unwrap();
    assert_eq!((mode(&state), mode(&run)), (0o700, 0o700));
}
