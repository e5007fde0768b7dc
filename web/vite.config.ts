import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vite'

// Names carry no hash: the bundle is committed, and a rebuild of the same sources is the same bytes under the same names.
export default defineConfig({
  base: './',
  plugins: [svelte()],
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
