//! Whether the machine has a screen.

use std::path::Path;

use anyhow::Context as _;

/// Returns whether a screen shows the virtual terminals.
///
/// # Errors
/// The kernel's list of consoles cannot be read.
pub fn exists() -> anyhow::Result<bool> {
    let class = Path::new("/sys/class/vtconsole");
    if !class.exists() {
        return Ok(false);
    }
    let listed = class
        .read_dir()
        .with_context(|| format!("list {}", class.display()))?;
    for console in listed {
        let console = console?.path();
        let read = |name: &str| {
            let path = console.join(name);
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
        };
        if is_screen(&read("name")?, &read("bind")?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a console driver shows a screen, by its name and whether terminals are bound to it (`show_name` and
/// `show_bind` of drivers/tty/vt/vt.c in the kernel's source).
///
/// `VGA+` is the text mode of a graphics card, as drivers/video/console/vgacon.c calls it. Without a card the same driver reports a
/// `*CGA`, which no machine of this architecture has had, and other kernels have a `dummy device`.
fn is_screen(name: &str, bind: &str) -> bool {
    bind.trim() == "1" && (name.contains("VGA+") || name.contains("frame buffer"))
}

/// Returns the number of the terminal that is shown, from `/sys/class/tty/tty0/active`.
pub fn shown() -> Option<u8> {
    number(&std::fs::read_to_string("/sys/class/tty/tty0/active").ok()?)
}

fn number(active: &str) -> Option<u8> {
    active.trim().strip_prefix("tty")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_text_of_a_card_or_a_framebuffer() {
        assert!(is_screen("(S) VGA+\n", "1\n"));
        assert!(is_screen("(M) frame buffer device\n", "1\n"));
        assert!(!is_screen("(M) frame buffer device\n", "0\n"));
        assert!(!is_screen("(S) dummy device\n", "1\n"));
        assert!(!is_screen("(S) *CGA\n", "1\n"));
    }

    #[test]
    fn the_shown_terminal_has_a_number() {
        assert_eq!(number("tty2\n"), Some(2));
        assert_eq!(number("ttyS0\n"), None);
    }
}
