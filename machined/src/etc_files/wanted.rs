//! The files that /etc is to have beside the image's, and the choice among those that extensions offer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::entries::{Entries, with};
use crate::values::EtcFile;

/// The files of extensions, by the names of the extensions.
pub type OfExtensions = BTreeMap<String, Vec<EtcFile>>;

/// All files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) of_config: Vec<EtcFile>,
    pub(super) of_extensions: OfExtensions,
    /// Neither the record nor /etc was compared with them: one of the two may be ahead of the other.
    pub(super) not_compared: bool,
}

impl Wanted {
    /// All files, each once: the config's own take precedence, also over a file where one of them needs a directory, or below one of them.
    pub(super) fn all(&self) -> Vec<EtcFile> {
        let of_config = self.of_config.iter().map(|it| Path::new(&it.name));
        let named: BTreeSet<&Path> = of_config.clone().collect();
        let needed: BTreeSet<&Path> = of_config.flat_map(Path::ancestors).collect();
        let of_extensions = joined(self.of_extensions.values()).into_values();
        let others = of_extensions.filter(|it| {
            let path = Path::new(&it.name);
            !needed.contains(path) && !path.ancestors().any(|above| named.contains(above))
        });
        others.chain(&self.of_config).cloned().collect()
    }
}

/// Joins the files of extensions, by their paths: the later extension takes precedence.
fn joined<'a>(
    extensions: impl Iterator<Item = &'a Vec<EtcFile>>,
) -> BTreeMap<&'a str, &'a EtcFile> {
    let files = extensions.flatten();
    files.map(|file| (&*file.name, file)).collect()
}

/// The files that an extension may have: those of the image that was in force last, and those of another image, if there is one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offer {
    /// Its previous files.
    pub before: Option<Vec<EtcFile>>,
    /// The files that are to take their place.
    pub next: Option<Vec<EtcFile>>,
}

/// The files of an offer that are taken; the later case is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Taken {
    /// The previous files.
    Before,
    /// The next ones.
    Next,
}

/// The choice among the offers of extensions, by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The files that have a place.
    pub taken: BTreeMap<String, Taken>,
    /// Why the best offer of an extension has no place. Its previous files may have one all the same.
    pub refused: BTreeMap<String, String>,
}

/// Chooses the files that have a place beside those of the image and of each other. Files of before go before others: an extension whose
/// files are there loses them to no other one. Whether the config's own files have a place is another question.
pub(super) fn choose(image: &Entries, offers: &BTreeMap<String, Offer>) -> Choice {
    let mut choice = Choice::default();
    // One that gives files up may make room for one that was tried before it. Each round but the last one takes files that are better.
    loop {
        let before = choice.taken.clone();
        for which in [Taken::Before, Taken::Next] {
            for (name, offer) in offers {
                if choice.taken.get(name) < Some(&which) && offer.get(which).is_some() {
                    choice.try_with(image, offers, name, which);
                }
            }
        }
        if choice.taken == before {
            return choice;
        }
    }
}

impl Offer {
    fn get(&self, which: Taken) -> Option<&Vec<EtcFile>> {
        match which {
            Taken::Before => self.before.as_ref(),
            Taken::Next => self.next.as_ref(),
        }
    }

    fn best(&self) -> Taken {
        match self.next {
            Some(_) => Taken::Next,
            None => Taken::Before,
        }
    }
}

impl Choice {
    /// Takes files of an extension if they have a place beside those that are taken.
    fn try_with(
        &mut self,
        image: &Entries,
        offers: &BTreeMap<String, Offer>,
        name: &str,
        which: Taken,
    ) {
        let mut tried = self.taken.clone();
        tried.insert(name.to_owned(), which);
        let files = tried.iter();
        let files = files.filter_map(|(name, which)| offers.get(name)?.get(*which));
        let placed = with(image, joined(files).into_values());
        let is_best = offers.get(name).map(Offer::best) == Some(which);
        match placed {
            Ok(_) => {
                self.taken = tried;
                if is_best {
                    self.refused.remove(name);
                }
            }
            Err(error) if is_best => {
                self.refused.insert(name.to_owned(), error.to_string());
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::Entry;
    use super::*;

    fn files(names: &[&str]) -> Vec<EtcFile> {
        let file = |name: &&str| EtcFile {
            name: (*name).to_owned(),
            mode: 0o644,
            contents: String::new(),
        };
        names.iter().map(file).collect()
    }

    fn named(name: &str, contents: &str) -> EtcFile {
        EtcFile {
            name: name.to_owned(),
            mode: 0o644,
            contents: contents.to_owned(),
        }
    }

    #[test]
    fn a_file_of_the_config_takes_precedence_over_one_of_an_extension() {
        let extension = vec![named("app", "extension"), named("motd", "extension")];
        let later = vec![named("app", "later")];
        let wanted = Wanted {
            of_config: vec![named("motd", "config")],
            of_extensions: [("a".to_owned(), extension), ("b".to_owned(), later)].into(),
            not_compared: false,
        };
        let all = wanted.all();
        let all: Vec<_> = all.iter().map(|it| (&*it.name, &*it.contents)).collect();
        assert_eq!(all, [("app", "later"), ("motd", "config")]);
    }

    #[test]
    fn the_configs_own_take_the_place_of_files_above_or_below_them() {
        let wanted = Wanted {
            of_config: files(&["a/b", "c"]),
            of_extensions: [("x".to_owned(), files(&["a", "c/d", "e/f"]))].into(),
            not_compared: false,
        };
        let all = wanted.all();
        let all: BTreeSet<&str> = all.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(all, BTreeSet::from(["a/b", "c", "e/f"]));
    }

    /// An extension: its previous files, and the next ones; and which are taken, and whether one is refused.
    type Row = (
        &'static str,
        Option<&'static [&'static str]>,
        Option<&'static [&'static str]>,
        Option<Taken>,
        bool,
    );

    const BEFORE: Option<Taken> = Some(Taken::Before);
    const NEXT: Option<Taken> = Some(Taken::Next);

    /// Cases; the image has the directory `ssl` and the file `issue`.
    #[rustfmt::skip]
    const CASES: [&[Row]; 8] = [
        // Files with a place, over those of the image as well.
        &[("a", Some(&["x"]), None, BEFORE, false), ("b", None, Some(&["x", "issue"]), NEXT, false)],
        // One without a place keeps no others out.
        &[("a", None, Some(&["g", "ssl"]), None, true), ("b", None, Some(&["h"]), NEXT, false)],
        // The previous image stays in force where the next one has no place beside the system's files.
        &[("a", Some(&["x"]), Some(&["x", "issue/y"]), BEFORE, true)],
        // Nor beside those of another extension, whatever their names.
        &[("a", Some(&["x"]), Some(&["e"]), BEFORE, true), ("b", Some(&["e/f"]), None, BEFORE, false)],
        &[("a", Some(&["e/f"]), None, BEFORE, false), ("b", None, Some(&["e"]), None, true)],
        // A place that another one gives up is free.
        &[("a", Some(&["x"]), Some(&["e"]), NEXT, false), ("b", Some(&["e/f"]), Some(&["y"]), NEXT, false)],
        // Of two that want the same place the first one has it.
        &[("a", None, Some(&["e"]), NEXT, false), ("b", Some(&["x"]), Some(&["e/f"]), BEFORE, true)],
        // A new version of the system may take the place of files of before.
        &[("a", Some(&["ssl"]), None, None, true), ("b", Some(&["ssl"]), Some(&["x"]), NEXT, false)],
    ];

    #[test]
    fn files_of_before_stay_where_the_next_ones_have_no_place() {
        let image: Entries = [
            ("ssl".into(), Entry::Directory),
            ("issue".into(), Entry::File(0o644, Vec::new())),
        ]
        .into();
        for rows in CASES {
            let offers = rows.iter().map(|(name, before, next, ..)| {
                let offer = Offer {
                    before: before.map(files),
                    next: next.map(files),
                };
                ((*name).to_owned(), offer)
            });
            let choice = choose(&image, &offers.collect());
            for (name, _, _, taken, refused) in rows {
                assert_eq!(choice.taken.get(*name), taken.as_ref(), "{rows:?}");
                assert_eq!(choice.refused.contains_key(*name), *refused, "{rows:?}");
            }
        }
    }
}
