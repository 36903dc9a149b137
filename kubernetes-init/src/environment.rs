//! The environment of a service: the machine's, its unit's, its files', and the plan's, the later over the earlier
//! (systemd.exec(5), "Environment").

use std::collections::BTreeMap;
use std::fs;
use std::io;

use anyhow::{Context, Result, bail};

use crate::service::Service;

/// Where services look for programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/bin";
/// Limit on a file, in bytes.
const LARGEST: u64 = 256 << 10;

/// Variables by their names.
pub(crate) type Environment = BTreeMap<String, String>;

/// The variables of a service at its next start.
pub(crate) fn of(service: &Service) -> Result<Environment> {
    let mut environment = Environment::from([("PATH".to_owned(), PATH.to_owned())]);
    environment.extend(service.unit.environment.clone());
    for (path, may_be_missing) in &service.unit.environment_files {
        environment.extend(read(path, *may_be_missing)?);
    }
    environment.extend(service.environment.clone());
    Ok(environment)
}

fn read(path: &str, may_be_missing: bool) -> Result<Environment> {
    let text = match fs::metadata(path) {
        Ok(metadata) if metadata.len() > LARGEST => {
            bail!("the file of variables {path} has more than {LARGEST} bytes")
        }
        Ok(_) => fs::read_to_string(path),
        Err(error) => Err(error),
    };
    match text {
        Err(error) if error.kind() == io::ErrorKind::NotFound && may_be_missing => {
            Ok(Environment::new())
        }
        text => {
            let text = text.with_context(|| format!("cannot read the file of variables {path}"))?;
            parse(&text).with_context(|| format!("the file of variables {path} is not valid"))
        }
    }
}

/// Reads the lines `NAME=VALUE`. A backslash at the end of a line goes on in the next one; a value may be in quotes.
fn parse(text: &str) -> Result<Environment> {
    let mut variables = Environment::new();
    let mut begun = String::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if begun.is_empty() && (line.is_empty() || line.starts_with(['#', ';'])) {
            continue;
        }
        if let Some(part) = line.strip_suffix('\\') {
            begun.push_str(part);
            continue;
        }
        begun.push_str(line);
        let (name, value) = begun
            .split_once('=')
            .with_context(|| format!("line {} is no NAME=VALUE", number + 1))?;
        variables.insert(name.trim().to_owned(), unquoted(value.trim()).to_owned());
        begun.clear();
    }
    Ok(variables)
}

fn unquoted(value: &str) -> &str {
    let inside = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    inside('"').or_else(|| inside('\'')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_of_variables_are_read() {
        let text = "# a comment\n; another\n\nA=1\nB=\"two words\"\nC='$D'\nKUBELET_KUBEADM_ARGS=--a=1 \\\n  --b=2\nE=\n";
        let variables = parse(text).unwrap();
        let expected = [
            ("A", "1"),
            ("B", "two words"),
            ("C", "$D"),
            ("E", ""),
            ("KUBELET_KUBEADM_ARGS", "--a=1 --b=2"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables, Environment::from(expected));
        let refused = parse("A=1\nnonsense\n").unwrap_err();
        assert_eq!(refused.to_string(), "line 2 is no NAME=VALUE");
    }

    #[test]
    fn the_plan_is_over_the_files_and_these_are_over_the_unit() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file").display().to_string();
        fs::write(&file, "B=file\nC=file\n").unwrap();
        let missing = folder.path().join("missing").display().to_string();
        let variables = |names: &[&str], value: &str| -> Environment {
            let owned = names
                .iter()
                .map(|name| ((*name).to_owned(), value.to_owned()));
            owned.collect()
        };
        let mut service = Service {
            environment: variables(&["C"], "plan"),
            ..Service::default()
        };
        service.unit.environment = variables(&["A", "B", "C"], "unit");
        service.unit.environment_files = vec![(file, false), (missing.clone(), true)];
        let all = of(&service).unwrap();
        let found = ["A", "B", "C", "PATH"].map(|name| all[name].as_str());
        assert_eq!(found, ["unit", "file", "plan", PATH]);
        service
            .unit
            .environment_files
            .push((missing.clone(), false));
        let error = format!("{:#}", of(&service).unwrap_err());
        assert!(error.contains(&missing), "{error}");
    }
}
