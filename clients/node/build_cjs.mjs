// Marks the second run of the compiler as CommonJS: the package itself says that .js files are ES modules.
import {writeFileSync} from "node:fs";

writeFileSync(new URL("dist/cjs/package.json", import.meta.url), '{"type": "commonjs"}\n');
