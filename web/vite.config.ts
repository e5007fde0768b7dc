import { svelte } from '@sveltejs/vite-plugin-svelte'
import { createHash } from 'node:crypto'
import { readFileSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { defineConfig, type Plugin } from 'vite'

const MADE_OF = ['index.html', 'package.json', 'package-lock.json', 'public', 'src', 'svelte.config.js', 'tsconfig.json', 'vite.config.ts']

/** `sources.sha256` beside the bundle: of every file it is made of. A test without Node compares it (tests/unit/test_bundle.py). */
function sources(): Plugin {
  const below = (path: string): string[] =>
    /\.\w+$/.test(path) ? [path] : readdirSync(join(__dirname, path)).sort().flatMap((name) => below(`${path}/${name}`))
  return {
    name: 'sources',
    generateBundle() {
      const lines = MADE_OF.flatMap(below).map((path) => `${createHash('sha256').update(readFileSync(join(__dirname, path))).digest('hex')}  ${path}\n`)
      this.emitFile({ type: 'asset', fileName: 'sources.sha256', source: lines.join('') })
    },
  }
}

// Names carry no hash: the bundle is committed, and a rebuild of the same sources is the same bytes under the same names.
export default defineConfig({
  base: './',
  plugins: [svelte(), sources()],
  build: {
    outDir: '../src/tunecast/web/static',
    emptyOutDir: true,
    target: 'es2022',
    assetsInlineLimit: 0,
    modulePreload: false,
    rollupOptions: {
      output: {
        entryFileNames: 'page.js',
        chunkFileNames: '[name].js',
        assetFileNames: (asset) => (asset.names[0]?.endsWith('.css') ? 'page.css' : '[name][extname]'),
        manualChunks: (id) => (/node_modules\/(@observablehq|d3|interval-tree|binary-search|isoformat|internmap|delaunator|robust)/.test(id) ? 'charts' : undefined),
      },
    },
    cssCodeSplit: false,
  },
  server: { proxy: { '/api': process.env.TUNECAST_SERVER ?? 'http://127.0.0.1:8765' } },
})
