// Draws one slice of an array of a server, by zarrita, and says in window.done what it drew: ?url=…&path=…&format=v2|v3|auto&at=…
import * as zarr from "zarrita";

const given = new URL(location.href).searchParams;
const open = { v2: zarr.open.v2, v3: zarr.open.v3, auto: zarr.open }[given.get("format")];

async function draw() {
  const root = zarr.root(new zarr.FetchStore(given.get("url")));
  const array = await open(root.resolve(given.get("path")), { kind: "array" });
  const { data, shape, stride } = await zarr.get(array, [null, null, Number(given.get("at"))]);
  const canvas = document.querySelector("canvas");
  [canvas.height, canvas.width] = shape;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  for (let y = 0; y < shape[0]; y++) {
    for (let x = 0; x < shape[1]; x++) {
      const value = data[y * stride[0] + x * stride[1]], at = 4 * (y * shape[1] + x);
      image.data.set([value & 255, value >> 8, 0, 255], at); // both bytes of a uint16, as red and green
    }
  }
  context.putImageData(image, 0, 0);
  return { shape, dtype: array.dtype };
}

window.done = draw().catch((error) => ({ error: String(error) }));
