//! Files that commands write for people. What was there stays until the new content is whole and on the disk, and a file keeps its mode
//! and its owner. But it is written in its place, and a failure leaves a part of it, where nothing can be put beside it, where only its
//! owner could make one like it, and where it is a device, a pipe, or a link to nothing.

use crate::failure::{Failure, Result};
use crate::output::{print, tell};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// What a failed call for this file means.
pub(crate) fn cannot(path: &Path) -> impl Fn(io::Error) -> Failure + Copy {
    move |error| Failure::Other(format!("{}: {error}", path.display()))
}

/// Writes a picture into a file, and says so; or to standard output, for `-`.
pub(crate) fn draw(path: &Path, picture: &str) -> Result<()> {
    if path == Path::new("-") {
        return print(picture.trim_end());
    }
    write(path, picture.as_bytes())?;
    tell(format_args!("drawn into {}", path.display()));
    Ok(())
}

/// Writes a file of these bytes.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, |file| file.write_all(bytes).map_err(cannot(path)))
}

/// Writes a file of what `content` writes.
pub(crate) fn replace(path: &Path, content: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let cannot = cannot(path);
    // Through links, to what they name.
    let target = match path.canonicalize() {
        Ok(target) => target,
        Err(_) if path.is_symlink() => return in_place(path, content),
        Err(_) => path.to_owned(),
    };
    let old = fs::metadata(&target).ok();
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        // A device, or a pipe.
        return in_place(path, content);
    }
    if old.is_some() {
        // What may not be written is not replaced either.
        OpenOptions::new().write(true).open(&target).map_err(cannot)?;
    }
    let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Of a name that nobody has; removed if this fails.
    let part = tempfile::Builder::new()
        .prefix(".sapwood-")
        .suffix(".part")
        .make_in(dir, |path| OpenOptions::new().write(true).create_new(true).open(path));
    let mut part = match part {
        Ok(part) => part,
        // The directory takes no new file. The old one may be writable.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return in_place(path, content),
        Err(error) => return Err(cannot(error)),
    };
    if old.is_some_and(|old| make_like(part.as_file(), &old).is_err()) {
        // Nobody but its owner can make one like it.
        return in_place(path, content);
    }
    content(part.as_file_mut())?;
    part.as_file().sync_all().map_err(cannot)?;
    part.persist(&target).map_err(|error| cannot(error.error))?;
    Ok(())
}

fn in_place(path: &Path, content: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let cannot = cannot(path);
    let mut file = File::create(path).map_err(cannot)?;
    content(&mut file)?;
    // Devices and pipes have nothing to be made durable.
    if file.metadata().is_ok_and(|is| is.is_file()) { file.sync_all().map_err(cannot) } else { Ok(()) }
}

/// Gives a file the owner and the mode of another.
fn make_like(file: &File, old: &Metadata) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, fchown};
        let new = file.metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            fchown(file, Some(old.uid()), Some(old.gid()))?;
        }
    }
    file.set_permissions(old.permissions())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in a directory, sorted.
    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_fails_leaves_the_old_file_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map.svg");
        fs::write(&path, "old").unwrap();
        fs::write(dir.path().join("map.svg.part"), "of somebody else").unwrap();
        let failed = replace(&path, |file| {
            file.write_all(b"half").map_err(cannot(&path))?;
            Err(Failure::Other("no more".to_owned()))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        // While one is written, another is.
        replace(&path, |file| {
            write(&path, b"another").and_then(|()| file.write_all(b"new").map_err(cannot(&path)))
        })
        .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read(dir.path().join("map.svg.part")).unwrap(), b"of somebody else");
        assert_eq!(names(dir.path()), ["map.svg", "map.svg.part"]);
    }

    #[cfg(unix)]
    #[test]
    fn modes_and_links_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for mode in [0o600, 0o640, 0o666] {
            fs::write(at("secret"), "old").unwrap();
            fs::set_permissions(at("secret"), fs::Permissions::from_mode(mode)).unwrap();
            write(&at("secret"), b"new").unwrap();
            assert_eq!(fs::metadata(at("secret")).unwrap().permissions().mode() & 0o777, mode);
        }
        // As any new file.
        File::create(at("any")).unwrap();
        write(&at("new"), b"new").unwrap();
        let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode();
        assert_eq!(mode("new"), mode("any"));
        for (link, name) in [("link", "secret"), ("dangling", "not yet")] {
            symlink(name, at(link)).unwrap();
            write(&at(link), link.as_bytes()).unwrap();
            assert!(at(link).is_symlink());
            assert_eq!(fs::read(at(name)).unwrap(), link.as_bytes());
        }
        write(Path::new("/dev/null"), b"nothing").unwrap();
        assert!(write(dir.path(), b"nothing").is_err());
        assert!(write(&at("none/file"), b"nothing").is_err());
    }
}
