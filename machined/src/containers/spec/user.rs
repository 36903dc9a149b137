//! The user that a container runs as: the image's user, looked up in the image's own /etc/passwd and /etc/group.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

/// Limit on the bytes that are read of a user database.
const LARGEST_DATABASE: u64 = 1 << 20;

/// Numeric ids that override the image's user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunAs {
    /// User id; the image's if absent.
    pub uid: Option<u32>,
    /// Group id; that of the user if absent.
    pub gid: Option<u32>,
}

/// The ids that a process runs with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Ids of the groups that list the user by name.
    pub additional_gids: Vec<u32>,
    /// Home directory, if /etc/passwd names one.
    pub home: Option<String>,
}

/// Ids that are no user's or group's. -1 means "leave it" to the system calls that change ids, which would be root; 65535 means
/// the same to the old calls of 16 bits.
const NOBODYS_IDS: [u32; 2] = [u32::MAX, 65_535];

/// Why the user of a container cannot be determined.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum UserError {
    /// The image names a user or group that its database lacks.
    #[error("the image runs as {what} {name:?}, which is not in its {file}; give runAs a number")]
    Unknown {
        /// `user` or `group`.
        what: &'static str,
        /// The name, as in the image.
        name: String,
        /// The database that was searched.
        file: &'static str,
    },
    /// The id is one of `NOBODYS_IDS`.
    #[error(
        "the {what} {id} stands for \"leave it as it is\", which is root's; give runAs another number"
    )]
    Nobodys {
        /// `user` or `group`.
        what: &'static str,
        /// The id.
        id: u32,
    },
}

/// The image's user database.
#[derive(Debug, Default)]
pub(super) struct Database {
    passwd: String,
    group: String,
}

impl Database {
    /// Reads /etc/passwd and /etc/group of the image. Links in the image are followed within the image only.
    pub(super) fn read(rootfs: &Path) -> Self {
        Database {
            passwd: read(rootfs, "etc/passwd"),
            group: read(rootfs, "etc/group"),
        }
    }

    /// Resolves the image's `USER[:GROUP]`, with the overrides of the config.
    pub(super) fn resolve(&self, user: &str, run_as: Option<RunAs>) -> Result<User, UserError> {
        let (user, group) = match user.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (user, None),
        };
        let run_as = run_as.unwrap_or(RunAs {
            uid: None,
            gid: None,
        });
        let entry = match run_as.uid {
            Some(uid) => self
                .user(|_, number| number == uid)
                .unwrap_or_else(|| numbered(uid)),
            None => self.image_user(user)?,
        };
        // The image's group belongs to the image's user: it is ignored for another user.
        let group = group.filter(|group| run_as.uid.is_none() && !group.is_empty());
        let gid = match (run_as.gid, group) {
            (Some(gid), _) => gid,
            (None, Some(group)) => self.group(group)?,
            (None, None) => entry.gid,
        };
        let additional_gids = entry
            .name
            .map(|name| self.memberships(name))
            .unwrap_or_default();
        refuse_nobodys("user", entry.uid)?;
        for gid in additional_gids.iter().chain([&gid]) {
            refuse_nobodys("group", *gid)?;
        }
        Ok(User {
            uid: entry.uid,
            gid,
            additional_gids,
            home: entry.home.map(str::to_owned),
        })
    }

    fn image_user<'a>(&'a self, user: &str) -> Result<Entry<'a>, UserError> {
        if user.is_empty() {
            return Ok(self
                .user(|_, number| number == 0)
                .unwrap_or_else(|| numbered(0)));
        }
        if let Some(entry) = self.user(|name, _| name == user) {
            return Ok(entry);
        }
        match user.parse() {
            Ok(uid) => Ok(self
                .user(|_, number| number == uid)
                .unwrap_or_else(|| numbered(uid))),
            Err(_) if user == "root" => Ok(numbered(0)),
            Err(_) => Err(UserError::Unknown {
                what: "user",
                name: shown(user),
                file: "/etc/passwd",
            }),
        }
    }

    fn user(&self, wanted: impl Fn(&str, u32) -> bool) -> Option<Entry<'_>> {
        self.passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            let home = fields.nth(1).filter(|home| home.starts_with('/'));
            wanted(name, uid).then_some(Entry {
                name: Some(name),
                uid,
                gid,
                home,
            })
        })
    }

    fn group(&self, group: &str) -> Result<u32, UserError> {
        let named = self
            .groups()
            .find(|(name, _, _)| *name == group)
            .map(|(_, gid, _)| gid);
        let unknown = || UserError::Unknown {
            what: "group",
            name: shown(group),
            file: "/etc/group",
        };
        named.or_else(|| group.parse().ok()).ok_or_else(unknown)
    }

    fn memberships(&self, user: &str) -> Vec<u32> {
        let member = |members: &str| members.split(',').any(|member| member == user);
        self.groups()
            .filter(|(_, _, members)| member(members))
            .map(|(_, gid, _)| gid)
            .collect()
    }

    fn groups(&self) -> impl Iterator<Item = (&str, u32, &str)> {
        self.group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let gid = fields.nth(1)?.parse().ok()?;
            Some((name, gid, fields.next().unwrap_or_default()))
        })
    }
}

fn refuse_nobodys(what: &'static str, id: u32) -> Result<(), UserError> {
    match NOBODYS_IDS.contains(&id) {
        true => Err(UserError::Nobodys { what, id }),
        false => Ok(()),
    }
}

struct Entry<'a> {
    name: Option<&'a str>,
    uid: u32,
    gid: u32,
    home: Option<&'a str>,
}

/// A user id that /etc/passwd does not list: group 0, as in every runtime.
fn numbered(uid: u32) -> Entry<'static> {
    Entry {
        name: None,
        uid,
        gid: 0,
        home: None,
    }
}

fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Reads a file of the image; empty if it is missing or no regular file.
fn read(rootfs: &Path, path: &str) -> String {
    let open = || -> std::io::Result<String> {
        let root = openat2(
            CWD,
            rootfs,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::empty(),
        )?;
        // Nonblocking, because the file may be a fifo.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let file = File::from(openat2(&root, path, flags, Mode::empty(), resolve)?);
        let mut bytes = Vec::new();
        if file.metadata()?.is_file() {
            file.take(LARGEST_DATABASE).read_to_end(&mut bytes)?;
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    open().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn database() -> Database {
        Database {
            passwd: "root:x:0:0::/root:/bin/sh\nbroken\nweb:x:33:34:Web:/srv:/bin/false\nnohome:x:40:41::relative:\n".into(),
            group: "root:x:0:\nstaff:x:50:web,other\nlog:x:51:web\nweb:x:34:\n".into(),
        }
    }

    fn resolve(
        user: &str,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> (u32, u32, usize, Option<String>) {
        let user = database().resolve(user, Some(RunAs { uid, gid })).unwrap();
        (user.uid, user.gid, user.additional_gids.len(), user.home)
    }

    #[test]
    fn images_name_users_in_every_way() {
        let srv = Some("/srv".to_owned());
        assert_eq!(resolve("", None, None), (0, 0, 0, Some("/root".into())));
        assert_eq!(resolve("web", None, None), (33, 34, 2, srv.clone()));
        assert_eq!(resolve("33", None, None), (33, 34, 2, srv.clone()));
        assert_eq!(resolve("web:staff", None, None), (33, 50, 2, srv.clone()));
        assert_eq!(resolve("web:7", None, None), (33, 7, 2, srv.clone()));
        assert_eq!(resolve("1000:2000", None, None), (1000, 2000, 0, None));
        assert_eq!(resolve("1000", None, None), (1000, 0, 0, None));
        assert_eq!(resolve("nohome", None, None), (40, 41, 0, None));
        assert_eq!(resolve("web:staff", Some(1000), None), (1000, 0, 0, None));
        assert_eq!(resolve("web:staff", None, Some(9)), (33, 9, 2, srv.clone()));
        assert_eq!(resolve("nobody-there", Some(33), None), (33, 34, 2, srv));
        assert_eq!(
            Database::default().resolve("root", None).unwrap(),
            User::default()
        );
        for unknown in ["ghost", "web:ghosts", "-1", "4294967296"] {
            assert!(database().resolve(unknown, None).is_err(), "{unknown}");
        }
    }

    #[test]
    fn nobody_runs_as_minus_one() {
        let database = Database {
            passwd: "all:x:4294967295:0::/:\nold:x:1:65535::/:\nmember:x:2:2::/:\ngood:x:3:3::/:\n"
                .into(),
            group: "all:x:4294967295:\nextra:x:65535:member\n".into(),
        };
        for user in [
            "4294967295",
            "+4294967295",
            "65535",
            "0:4294967295",
            "0:65535",
            "all",
            "old",
            "good:all",
            "member",
        ] {
            let refused = database.resolve(user, None).unwrap_err();
            assert!(matches!(refused, UserError::Nobodys { .. }), "{user}");
        }
        for id in NOBODYS_IDS {
            for (uid, gid) in [(Some(id), None), (None, Some(id))] {
                let refused = database.resolve("good", Some(RunAs { uid, gid }));
                assert!(refused.is_err(), "{uid:?} {gid:?}");
            }
        }
        assert!(database.resolve("good", None).is_ok());
        assert!(database.resolve("65534:65534", None).is_ok());
    }

    #[test]
    fn the_database_is_read_inside_the_image_only() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("passwd"), "evil:x:1:1::/:\n").unwrap();
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let link = root.path().join("etc/passwd");
        std::os::unix::fs::symlink(outside.path().join("passwd"), &link).unwrap();
        assert_eq!(Database::read(root.path()).passwd, "");
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("/lib/passwd", &link).unwrap();
        std::fs::create_dir(root.path().join("lib")).unwrap();
        std::fs::write(root.path().join("lib/passwd"), "good:x:1:1::/:\n").unwrap();
        assert!(Database::read(root.path()).resolve("good", None).is_ok());
        std::fs::remove_file(&link).unwrap();
        rustix::fs::mkfifoat(CWD, &link, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(
            Database::read(root.path()).passwd,
            "",
            "a fifo must not block"
        );
    }
}
