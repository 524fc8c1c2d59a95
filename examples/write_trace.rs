// Writes a firstdrift trace with the standard library alone. The format: docs/trace-format.md
use std::fs::{create_dir_all, write, File};
use std::io::{Result, Write};

pub struct Trace { index: File, data: File, end: u64, lines: u64 }

impl Trace {
    pub fn create(dir: &str) -> Result<Trace> {
        create_dir_all(dir)?;
        let index = File::create(format!("{dir}/index.jsonl"))?; // first, so that no old line points into new data
        let data = File::create(format!("{dir}/data-00000.bin"))?;
        write(format!("{dir}/trace.json"), "{\"format\":\"firstdrift-trace\",\"version\":1,\"producer\":\"my engine\"}\n")?;
        Ok(Trace { index, data, end: 0, lines: 0 })
    }

    /// The bytes first, then the line that says where they are. `File` has no buffer, so each is one write.
    /// Names here need no JSON escapes; beyond 1 GiB begin data-00001.bin.
    pub fn put(&mut self, step: u64, phase: &str, name: &str, values: &[f32], shape: &[usize]) -> Result<()> {
        let start = self.end.next_multiple_of(64);
        let mut bytes = vec![0; (start - self.end) as usize];
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.data.write_all(&bytes)?;
        self.end += bytes.len() as u64;
        let size = self.end - start;
        let line = format!("{{\"step\":{step},\"phase\":\"{phase}\",\"name\":\"{name}\",\"dtype\":\"f32\",\
                            \"shape\":{shape:?},\"at\":[0,{start},{size}]}}\n");
        self.lines += 1;
        self.index.write_all(line.as_bytes())
    }

    pub fn close(mut self) -> Result<()> {
        self.index.write_all(format!("{{\"end\":{}}}\n", self.lines).as_bytes())
    }
}
