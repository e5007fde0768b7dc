// The bundle: one file, with the language client in it, so that the package needs nothing from anywhere; and beside it
// the licences of what is in it.
import { build } from 'esbuild'
import { copyFileSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'

const { metafile } = await build({
  entryPoints: ['src/extension.ts'],
  outfile: 'dist/extension.js',
  bundle: true,
  minify: true,
  platform: 'node',
  target: 'node18', // of VS Code 1.82
  format: 'cjs',
  external: ['vscode'],
  legalComments: 'none',
  metafile: true,
  logLevel: 'warning',
})

const PACKAGE = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//
const packages = [...new Set(Object.keys(metafile.inputs).flatMap((path) => PACKAGE.exec(path)?.[1] ?? []))].sort()
const licences = packages.map((folder) => {
  const { name, version, license } = JSON.parse(readFileSync(`${folder}/package.json`, 'utf8'))
  const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each))
  if (!file) throw new Error(`${name} has no licence to pass on`)
  return `${name} ${version} (${license})\n\n${readFileSync(`${folder}/${file}`, 'utf8').trim()}\n`
})
writeFileSync('dist/LICENSES.txt', licences.join('\n----------------------------------------\n\n'))
copyFileSync('../../LICENSE', 'dist/LICENSE.txt')
