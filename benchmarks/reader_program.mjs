// zarrita.js, as reader_program.py has the others: node reader_program.mjs STORES OUT CASE …

import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import * as zarr from "zarrita";
import FileSystemStore from "@zarrita/storage/fs";

const [stores, out, ...cases] = process.argv.slice(2);

const PART = [zarr.slice(3, 21), zarr.slice(5, 30)]; // as in reader_program.py

async function read(array, region, file) {
  const found = await zarr.get(array, region);
  const { data, shape } = typeof found === "number" ? { data: Int32Array.of(found), shape: [] } : inOrderC(found);
  writeFileSync(file, Buffer.from(data.buffer, data.byteOffset, data.byteLength));
  return shape;
}

// Values come in whichever order suits the chunks; their strides say which.
function inOrderC({ data, shape, stride }) {
  if (!(data instanceof Int32Array)) throw new TypeError(`the values are a ${data.constructor.name}`);
  const ordered = new Int32Array(data.length);
  for (let i = 0; i < ordered.length; i++) {
    let rest = i;
    let at = 0;
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      at += (rest % shape[axis]) * stride[axis];
      rest = Math.floor(rest / shape[axis]);
    }
    ordered[i] = data[at];
  }
  return { data: ordered, shape };
}

for (const name of cases) {
  console.log(JSON.stringify({ case: name }));
  let what = "";
  try {
    const store = new FileSystemStore(resolve(stores, name));
    const array = await zarr.open(zarr.root(store).resolve("0"), { kind: "array" });
    const shape = await read(array, null, join(out, `${name}.whole.bin`));
    what = "of a part: ";
    await read(array, PART.slice(0, array.shape.length), join(out, `${name}.part.bin`));
    console.log(JSON.stringify({ case: name, shape }));
  } catch (error) {
    console.log(JSON.stringify({ case: name, error: `${what}${error.name}: ${error.message}` }));
  }
}
