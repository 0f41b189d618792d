//! Mode pages, which describe the unit's behaviour (SPC-4, 7.5; SBC-3, 6.5). No page can be
//! changed. But MODE SELECT with the current values succeeds, because some initiators send it.

use super::cdb::be16;
use super::sense::Sense;
use farblock_block::Geometry;

/// The page control value with which MODE SENSE requests the changeable bits.
const CHANGEABLE: u8 = 1;
const SAVED: u8 = 3;
/// The page code that requests all pages.
const ALL: u8 = 0x3f;

/// The mode pages in ascending order of their codes.
fn pages(geometry: &Geometry) -> [Vec<u8>; 4] {
    let mut recovery = vec![0; 12];
    recovery[..2].copy_from_slice(&[0x01, 10]);
    let mut caching = vec![0; 20];
    caching[..3].copy_from_slice(&[0x08, 18, u8::from(geometry.volatile_cache) << 2]);
    // Control page: each session has its own task set, and the unit may reorder commands.
    let mut control = vec![0; 12];
    control[..4].copy_from_slice(&[0x0a, 10, 1 << 5, 1 << 4]);
    let mut exceptions = vec![0; 12];
    exceptions[..2].copy_from_slice(&[0x1c, 10]);
    [recovery, caching, control, exceptions]
}

/// Answers MODE SENSE.
pub(crate) fn sense(
    geometry: &Geometry,
    long: bool,
    descriptors: bool,
    control: u8,
    (page, subpage): (u8, u8),
) -> Result<Vec<u8>, Sense> {
    if control == SAVED {
        return Err(Sense::SAVING);
    }
    if subpage != 0 && !(subpage == 0xff && page == ALL) {
        return Err(Sense::in_cdb(3));
    }
    let mut body = Vec::new();
    for mut found in pages(geometry) {
        if page == ALL || page == found[0] {
            if control == CHANGEABLE {
                found[2..].fill(0);
            }
            body.extend(found);
        }
    }
    if body.is_empty() {
        return Err(Sense::in_cdb(2));
    }
    let descriptor = if descriptors { block_descriptor(geometry) } else { Vec::new() };
    // The unit supports FUA and DPO. The highest bit means write-protected.
    let device = 0x10 | u8::from(geometry.read_only) << 7;
    let descriptor_bytes = descriptor.len() as u8;
    let mut data = match long {
        true => vec![0, 0, 0, device, 0, 0, 0, descriptor_bytes],
        false => vec![0, 0, device, descriptor_bytes],
    };
    data.extend(descriptor);
    data.extend(body);
    if long {
        let length = data.len() as u16 - 2;
        data[..2].copy_from_slice(&length.to_be_bytes());
    } else {
        data[0] = data.len() as u8 - 1;
    }
    Ok(data)
}

fn block_descriptor(geometry: &Geometry) -> Vec<u8> {
    let blocks = u32::try_from(geometry.blocks).unwrap_or(u32::MAX);
    [blocks.to_be_bytes(), geometry.block_size.to_be_bytes()].concat()
}

/// Checks the parameters of MODE SELECT.
pub(crate) fn select(geometry: &Geometry, long: bool, parameters: &[u8]) -> Result<(), Sense> {
    if parameters.is_empty() {
        return Ok(());
    }
    let header = if long { 8 } else { 4 };
    let (start, mut rest) = parameters.split_at_checked(header).ok_or(Sense::PARAMETER_LENGTH)?;
    let descriptor_bytes = if long { be16(start, 6) } else { start[3].into() };
    let (descriptor, after) =
        rest.split_at_checked(descriptor_bytes.into()).ok_or(Sense::PARAMETER_LENGTH)?;
    rest = after;
    let same = match descriptor {
        [] => true,
        [_, _, _, _, 0, size @ ..] if size.len() == 3 => {
            *size == geometry.block_size.to_be_bytes()[1..]
        }
        _ => false,
    };
    if !same {
        return Err(Sense::in_parameters(header as u16));
    }
    while let [code, length, ..] = *rest {
        let at = (parameters.len() - rest.len()) as u16;
        let size = usize::from(length) + 2;
        let (page, after) = rest.split_at_checked(size).ok_or(Sense::PARAMETER_LENGTH)?;
        // The highest bit of the page code is reserved in MODE SELECT.
        let ours = pages(geometry).into_iter().find(|ours| ours[0] == code & 0x7f);
        let ours = ours.ok_or(Sense::in_parameters(at))?;
        if ours.len() != size {
            return Err(Sense::in_parameters(at + 1));
        }
        if let Some(byte) = (2..size).find(|&byte| ours[byte] != page[byte]) {
            return Err(Sense::in_parameters(at + byte as u16));
        }
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { Err(Sense::PARAMETER_LENGTH) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mode_pages_are_sent_and_accepted_back() {
        for (long, header) in [(false, 4), (true, 8)] {
            let geometry = Geometry { volatile_cache: true, ..Geometry::new(512, 100) };
            let mut data = sense(&geometry, long, true, 0, (ALL, 0)).expect("pages");
            assert_eq!(data.len(), header + 8 + 12 + 20 + 12 + 12);
            let said = if long { usize::from(be16(&data, 0)) + 2 } else { data[0] as usize + 1 };
            assert_eq!(said, data.len());
            assert_eq!(data[header + 8 + 12 + 2], 4, "the page reports no volatile cache");
            assert_eq!(select(&geometry, long, &data), Ok(()));
            let at = header + 8 + 12 + 2;
            data[at] = 0;
            assert_eq!(select(&geometry, long, &data), Err(Sense::in_parameters(at as u16)));
        }
    }

    #[test]
    fn no_mode_value_is_changeable() {
        let geometry = Geometry { volatile_cache: true, ..Geometry::new(512, 100) };
        let data = sense(&geometry, false, false, CHANGEABLE, (8, 0)).expect("a page");
        assert_eq!(data[4..6], [8, 18]);
        assert!(data[6..].iter().all(|&byte| byte == 0));
        assert_eq!(sense(&geometry, false, false, SAVED, (8, 0)), Err(Sense::SAVING));
        assert_eq!(sense(&geometry, false, false, 0, (9, 0)), Err(Sense::in_cdb(2)));
        assert_eq!(sense(&geometry, false, false, 0, (8, 1)), Err(Sense::in_cdb(3)));
    }

    #[test]
    fn a_read_only_unit_reports_write_protection() {
        let geometry = Geometry { read_only: true, ..Geometry::new(512, 100) };
        let data = sense(&geometry, false, false, 0, (8, 0)).expect("a page");
        assert_eq!((data[2], data[6]), (0x90, 0));
    }

    #[test]
    fn invalid_mode_parameters_are_refused() {
        let geometry = Geometry::new(512, 100);
        let long = [0, 0, 0, 0, 0x08, 18, 0];
        assert_eq!(select(&geometry, false, &[]), Ok(()));
        assert_eq!(select(&geometry, false, &[0; 4]), Ok(()));
        for cut in [&[0; 3][..], &[0, 0, 0, 8], &long, &[0, 0, 0, 0, 8]] {
            assert_eq!(select(&geometry, false, cut), Err(Sense::PARAMETER_LENGTH), "{cut:?}");
        }
        let other_size = [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 16, 0];
        assert_eq!(select(&geometry, false, &other_size), Err(Sense::in_parameters(4)));
        assert_eq!(select(&geometry, false, &[0, 0, 0, 0, 9, 0]), Err(Sense::in_parameters(4)));
    }
}
