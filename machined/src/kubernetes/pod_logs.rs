//! The logs of pods' containers: files that containerd writes, and kubelet rotates and removes.
//!
//! ```text
//! var/log/pods/NAMESPACE_POD_UID/CONTAINER/0.log      the first attempt of the container; 1.log is the next one
//!                                         /0.log.…    what kubelet has rotated away
//! ```
//!
//! They are there without the API server, and after the container has ended, which is when people look for them. Their lines are passed on as they
//! are, with time and stream. Sources: `BuildPodLogsDirectory` and `BuildContainerLogsDirectory` of Kubernetes, and its "CRI logging" format.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::str::FromStr;

use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, openat2};

use super::container_root::open_directory;
use crate::config::Kubernetes;
use crate::services::{Tail, start_of_last};

/// The folder of the logs, below the folder of Kubernetes on the machine.
const LOGS: &str = "var/log/pods";
/// Most pods and containers that are looked through, and names that are listed.
const MOST: usize = 4096;
const MOST_NAMES: usize = 200;
/// Limit on what is read at once.
const CHUNK: u64 = 64 << 10;
/// No link is followed: a pod may have put it there.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// The name of a container of a pod, as `containers -k` shows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodContainerName {
    namespace: String,
    pod: String,
    container: String,
}

/// The text is no name of a container.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is not the name of a pod's container: it has the form NAMESPACE/POD:CONTAINER, as the list of containers shows it"
)]
pub struct NotAName(String);

impl FromStr for PodContainerName {
    type Err = NotAName;

    /// Its id at containerd may stand behind it: the log is that of the newest attempt anyway.
    fn from_str(text: &str) -> Result<Self, NotAName> {
        let parse = || {
            let (namespace, rest) = text.split_once('/')?;
            let mut parts = rest.split(':');
            let (pod, container, _id) = (parts.next()?, parts.next()?, parts.next());
            let is_name = |part: &&str| {
                let is_of_names = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
                !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_of_names)
            };
            let parts_are_names = [namespace, pod, container].iter().all(is_name);
            (parts_are_names && parts.next().is_none()).then(|| Self {
                namespace: namespace.to_owned(),
                pod: pod.to_owned(),
                container: container.to_owned(),
            })
        };
        parse().ok_or_else(|| NotAName(text.to_owned()))
    }
}

impl fmt::Display for PodContainerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.pod, self.container)
    }
}

/// The log of a container, opened somewhere.
#[derive(Debug)]
pub struct PodLog {
    /// The folder of the container's attempts.
    attempts: OwnedFd,
    file: File,
}

impl PodLog {
    /// Opens the log of the newest attempt of a container, in the newest pod of the name; `None` if there is none. Blocks.
    ///
    /// # Errors
    /// The logs cannot be read.
    pub fn open(name: &PodContainerName, tail: Tail) -> io::Result<Option<Self>> {
        let Some(logs) = logs(Path::new(Kubernetes::HOME))? else {
            return Ok(None);
        };
        Self::open_in(&logs, name, tail)
    }

    fn open_in(logs: &OwnedFd, name: &PodContainerName, tail: Tail) -> io::Result<Option<Self>> {
        let prefix = format!("{}_{}_", name.namespace, name.pod);
        let pods = names_in(logs)?.into_iter();
        let mut pods: Vec<_> = pods
            .filter(|pod| pod.starts_with(&prefix))
            .filter_map(|pod| {
                let path = format!("{pod}/{}", name.container);
                let attempts = open_directory(logs, &path, OFlags::RDONLY, WITHIN).ok()?;
                let file = newest(&attempts).ok()??;
                let written = file.metadata().and_then(|metadata| metadata.modified());
                Some((written.ok()?, Self { attempts, file }))
            })
            .collect();
        pods.sort_by_key(|(written, _)| *written);
        let Some((_, mut newest)) = pods.pop() else {
            return Ok(None);
        };
        newest.skip_to(tail)?;
        Ok(Some(newest))
    }

    fn skip_to(&mut self, tail: Tail) -> io::Result<()> {
        if let Tail::Lines(mut count) = tail {
            let end = self.file.metadata()?.len();
            let start = start_of_last(&self.file, end, &mut count)?;
            self.file.seek(SeekFrom::Start(start.unwrap_or(0)))?;
        }
        Ok(())
    }

    /// Reads on; empty at the present end. After it goes on with the file that took the place of this one. Blocks.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn next_chunk(&mut self) -> io::Result<Vec<u8>> {
        let chunk = self.read()?;
        if !chunk.is_empty() {
            return Ok(chunk);
        }
        let Some(newest) = newest(&self.attempts)? else {
            return Ok(chunk);
        };
        let (own, other) = (self.file.metadata()?, newest.metadata()?);
        if (own.dev(), own.ino()) == (other.dev(), other.ino()) {
            return Ok(chunk);
        }
        // Nothing is written to this one once the other is there; its last lines may have come since the end was seen.
        let last = self.read()?;
        if last.is_empty() {
            self.file = newest;
            return self.read();
        }
        Ok(last)
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut chunk = Vec::new();
        (&self.file).take(CHUNK).read_to_end(&mut chunk)?;
        Ok(chunk)
    }
}

/// Lists the containers that have a log, a limited number of them. Blocks.
///
/// # Errors
/// The logs cannot be read.
pub fn names() -> io::Result<Vec<PodContainerName>> {
    match logs(Path::new(Kubernetes::HOME))? {
        Some(logs) => names_of(&logs),
        None => Ok(Vec::new()),
    }
}

fn names_of(logs: &OwnedFd) -> io::Result<Vec<PodContainerName>> {
    let mut found = Vec::new();
    for folder in names_in(logs)? {
        let mut parts = folder.splitn(3, '_');
        let (Some(namespace), Some(pod)) = (parts.next(), parts.next()) else {
            continue;
        };
        // A pod may be removed meanwhile.
        let Ok(pod_folder) = open_directory(logs, &folder, OFlags::RDONLY, WITHIN) else {
            continue;
        };
        let containers = names_in(&pod_folder)?.into_iter();
        found.extend(containers.map(|container| PodContainerName {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container,
        }));
    }
    found.sort();
    found.dedup();
    found.truncate(MOST_NAMES);
    Ok(found)
}

/// The folder of all logs; `None` before the first pod.
fn logs(home: &Path) -> io::Result<Option<OwnedFd>> {
    let open = || {
        let home = home.to_string_lossy();
        let home = open_directory(CWD, &home, OFlags::PATH, ResolveFlags::empty())?;
        open_directory(home, LOGS, OFlags::RDONLY, WITHIN)
    };
    match open() {
        Ok(logs) => Ok(Some(logs)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn names_in(folder: &OwnedFd) -> io::Result<Vec<String>> {
    let names = Dir::read_from(folder)?.take(MOST).filter_map(|entry| {
        let name = entry.ok()?.file_name().to_str().ok()?.to_owned();
        (!name.starts_with('.')).then_some(name)
    });
    Ok(names.collect())
}

/// Opens the file of the newest attempt; `None` if there is none.
fn newest(attempts: &OwnedFd) -> io::Result<Option<File>> {
    let numbers = names_in(attempts)?.into_iter();
    let numbers = numbers.filter_map(|name| name.strip_suffix(".log")?.parse::<u64>().ok());
    let Some(number) = numbers.max() else {
        return Ok(None);
    };
    // A pod may have put a pipe there.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = openat2(
        attempts,
        format!("{number}.log"),
        flags,
        Mode::empty(),
        WITHIN,
    );
    let file = match opened {
        Ok(file) => File::from(file),
        // Between the end of one file and the beginning of the next.
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    Ok(file.metadata()?.is_file().then_some(file))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    fn place(home: &Path, pod: &str, file: &str, text: &str) -> std::path::PathBuf {
        let path = home.join(LOGS).join(pod).join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut open = File::options();
        let mut open = open.create(true).append(true).open(&path).unwrap();
        open.write_all(text.as_bytes()).unwrap();
        path
    }

    fn open(home: &Path, name: &str, tail: Tail) -> Option<PodLog> {
        let logs = logs(home).unwrap()?;
        PodLog::open_in(&logs, &name.parse().unwrap(), tail).unwrap()
    }

    fn next(log: &mut PodLog) -> String {
        String::from_utf8(log.next_chunk().unwrap()).unwrap()
    }

    #[test]
    fn a_name_is_that_of_the_list() {
        for text in ["default/web-1:web", "default/web-1:web:0123456789ab"] {
            let name: PodContainerName = text.parse().unwrap();
            assert_eq!(name.to_string(), "default/web-1:web");
        }
        let bad = [
            "",
            "web",
            "default/web",
            "default/../x:y",
            "a/b:c/d",
            "a/b:..",
            "a/b_c:d",
            "a/b:c:d:e",
        ];
        for text in bad {
            assert!(text.parse::<PodContainerName>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_newest_attempt_is_read_and_followed_into_the_next_file() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        assert!(open(home, "default/web:app", Tail::All).is_none());
        place(home, "default_web_u1", "app/9.log", "nine\n");
        let file = place(home, "default_web_u1", "app/10.log", "one\ntwo\n");
        place(home, "default_web-2_u2", "app/0.log", "another pod\n");
        let mut log = open(home, "default/web:app", Tail::Lines(1)).unwrap();
        assert_eq!([next(&mut log), next(&mut log)], ["two\n", ""]);
        place(home, "default_web_u1", "app/10.log", "three\n");
        assert_eq!(next(&mut log), "three\n");
        // kubelet rotates the file, and the container still writes to it for a moment.
        fs::rename(&file, file.with_file_name("10.log.2026")).unwrap();
        place(home, "default_web_u1", "app/10.log.2026", "four\n");
        place(home, "default_web_u1", "app/10.log", "five\n");
        place(home, "default_web_u1", "app/11.log", "six\n");
        let read = [next(&mut log), next(&mut log), next(&mut log)];
        assert_eq!(read, ["four\n", "six\n", ""]);
    }

    #[test]
    fn of_two_pods_of_a_name_the_one_that_wrote_last_is_meant() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        let old = place(home, "kube-system_api_u1", "api/0.log", "old\n");
        place(home, "kube-system_api_u0", "api/0.log", "new\n");
        let before = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
        File::options()
            .write(true)
            .open(old)
            .unwrap()
            .set_modified(before)
            .unwrap();
        let mut log = open(home, "kube-system/api:api", Tail::All).unwrap();
        assert_eq!(next(&mut log), "new\n");
        let names = names_of(&logs(home).unwrap().unwrap()).unwrap();
        assert_eq!(names, ["kube-system/api:api".parse().unwrap()]);
    }

    #[test]
    fn links_and_pipes_of_a_pod_are_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        let secret = home.join("secret");
        fs::write(&secret, "secret\n").unwrap();
        let link = place(home, "default_bad_u", "app/0.log", "");
        fs::remove_file(&link).unwrap();
        symlink(&secret, &link).unwrap();
        assert!(open(home, "default/bad:app", Tail::All).is_none());
        fs::remove_file(&link).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, &link, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(open(home, "default/bad:app", Tail::All).is_none());
    }
}
