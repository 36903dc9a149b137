//! Names of a program's functions, without what another build of the same sources would change.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};
use instar_tests::workspace_root;

/// The function that begins a program.
const FIRST: &str = "_start";
const PAGE: u64 = 4096;

/// A program's functions by their addresses in its file.
pub(crate) struct Symbols {
    /// By its address: the end of a function, and its names. Functions with the same code are one.
    functions: BTreeMap<u64, (u64, Vec<String>)>,
}

impl Symbols {
    /// Reads the symbols of a program.
    pub(crate) fn of(program: &Path) -> Result<Self> {
        let mut functions = BTreeMap::new();
        for line in output("nm", &["-S", "--defined-only"], program)?.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let (address, size, name) = match words[..] {
                [address, size, "t" | "T", name] => (address, size, name),
                // What is written in assembly tells no size.
                [address, "t" | "T", name] => (address, "1", name),
                _ => continue,
            };
            let number = |text| u64::from_str_radix(text, 16);
            let (address, size) = (number(address)?, number(size)?);
            let (end, names): &mut (u64, Vec<String>) = functions.entry(address).or_default();
            *end = (*end).max(address + size);
            names.push(name.to_owned());
        }
        ensure!(
            !functions.is_empty(),
            "{} has no symbols",
            program.display()
        );
        Ok(Self { functions })
    }

    /// Returns the names of the functions that ran, each once.
    ///
    /// # Errors
    /// The program did not run.
    pub(crate) fn in_order(&self, ran: &[Vec<u64>]) -> Result<Vec<String>> {
        let base = self.base(&ran.concat()).context("machined did not run")?;
        let mut seen = BTreeSet::new();
        let mut list = Vec::new();
        for address in ran.iter().flatten() {
            let Some(address) = address.checked_sub(base) else {
                continue;
            };
            let Some((start, (end, names))) = self.functions.range(..=address).next_back() else {
                continue;
            };
            if address < *end && seen.insert(*start) {
                list.extend(names.iter().cloned());
            }
        }
        let mut once = BTreeSet::new();
        let names = stable(&list)?.into_iter();
        Ok(names.filter(|name| once.insert(name.clone())).collect())
    }

    /// Finds the address that the program was loaded at: of all places where its first function may be, that with the most beginnings of
    /// functions among the addresses that ran.
    fn base(&self, ran: &[u64]) -> Option<u64> {
        let mut functions = self.functions.iter();
        let is_first =
            |(_, (_, names)): &(&u64, &(u64, Vec<String>))| names.contains(&FIRST.into());
        let (first, _) = functions.find(is_first)?;
        let ran: BTreeSet<u64> = ran.iter().copied().collect();
        let bases = ran.iter().filter_map(|address| address.checked_sub(*first));
        let begun = |base: &u64| {
            let within = ran.iter().filter_map(|address| address.checked_sub(*base));
            within
                .filter(|address| self.functions.contains_key(address))
                .count()
        };
        bases.filter(|base| base % PAGE == 0).max_by_key(begun)
    }
}

fn output(command: &str, arguments: &[&str], program: &Path) -> Result<String> {
    let output = Command::new(command).args(arguments).arg(program).output();
    let output = output.with_context(|| format!("cannot run {command}"))?;
    ensure!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).context("names that are no text")
}

/// Returns the names without what another build would change, as `build/link-in-order` has them.
fn stable(names: &[String]) -> Result<Vec<String>> {
    let script = workspace_root().join("build/function-names.sed");
    let mut sed = Command::new("sed")
        .args(["-E", "-f"])
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run sed")?;
    let mut input = sed.stdin.take().context("sed has no input")?;
    let text = names.join("\n");
    let writing = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = sed.wait_with_output().context("cannot wait for sed")?;
    ensure!(output.status.success(), "sed has failed");
    writing
        .join()
        .map_err(|_| anyhow!("the thread that writes to sed has ended"))??;
    let text = String::from_utf8(output.stdout).context("names that are no text")?;
    Ok(text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The beginning of each function, of 16 bytes, and its name.
    fn symbols(functions: &[(u64, &str)]) -> Symbols {
        let functions = functions.iter().map(|(address, name)| {
            let names = vec![(*name).to_owned()];
            (*address, (address + 16, names))
        });
        Symbols {
            functions: functions.collect(),
        }
    }

    #[test]
    fn functions_are_listed_in_the_order_of_their_use_without_numbers_of_a_build() {
        let symbols = symbols(&[
            (0x100, "_start"),
            (0x200, "_RNvNtCs2pjON7tXiBN_6anyhow5error3new"),
            (0x300, "_RNvNtB4_5error3old.llvm.123"),
            (0x400, "never"),
        ]);
        // Another program lies lower, and one of its addresses might be that of the first function.
        let other = 0x5000_0100;
        let base = 0x7fff_0000;
        let boot = [other, base + 0x100, base + 0x30f, base + 0x204];
        let idle = [base + 0x200, base + 0x200, base + 0x410, other + 0x10];
        let list = symbols.in_order(&[idle.into(), boot.into()]).unwrap();
        let expected = ["_RNvNtC_6anyhow5error3new", "_start", "_RNvNtB_5error3old"];
        assert_eq!(list, expected);
        assert!(symbols.in_order(&[vec![0x123]]).is_err());
    }
}
